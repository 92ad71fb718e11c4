"""Formats of records and files: csv, json, avro, parquet, orc."""
