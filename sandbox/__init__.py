"""A real Kafka on this machine, for the demo, the examples and the tests."""
