"""The incident report of a recovery: one document, made of the ledger alone."""
