"""What asks the ledger here raises LedgerError where it does not answer; of brokers see `kafka`."""
