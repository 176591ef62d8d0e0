"""Look-back: transactional messages for Kafka, whose application is asked when it falls silent."""
