"""PostgreSQL: sinks that append and upsert, and a bounded source. Needs `pip install tidegate[postgres]`."""
