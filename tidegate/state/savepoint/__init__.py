"""The savepoint format: a folder of Parquet files, written and read in one place."""
