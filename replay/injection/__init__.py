"""What kinds that send messages share: staged messages, the Kafka ledger, the steps (P3, P9)."""
