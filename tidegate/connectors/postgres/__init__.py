"""PostgreSQL: sinks that append and upsert, a bounded source, a source of changes: `pip install tidegate[postgres]`."""
