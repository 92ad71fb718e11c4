"""Tidegate: Apache Flink's fault tolerance as a Python system that runs on Spark."""

__version__ = "0.1.0"
