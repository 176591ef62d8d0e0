"""Kafka clients from configuration, admin verbs, errors translated once."""
