"""Kafka: a replayable source, and a sink with transactions. Needs `pip install tidegate[kafka]`."""
