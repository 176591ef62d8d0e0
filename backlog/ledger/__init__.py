"""The ledger: models, allowed transitions, verbs and migrations."""
