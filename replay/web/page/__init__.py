"""The page: what on-call looks at. Read-only, rendered here, works without scripts."""
