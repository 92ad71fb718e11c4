"""Keyed state in RocksDB on the worker's disk; see `backend`."""
