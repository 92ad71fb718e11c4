"""Checkpoints by barriers (Flink): coordinator in the JobManager, barrier handlers and snapshots in the tasks."""
