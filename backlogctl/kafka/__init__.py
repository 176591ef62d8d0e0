"""Kafka clients from configuration, admin verbs, errors translated once.

What asks the brokers, here and in other rooms, raises ClusterUnreachable or KafkaFailure where they
do not answer or refuse, and TopicMissing where the topic is not there. Docstrings name what else.
"""
