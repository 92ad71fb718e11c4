"""File and message formats, by module: `csv`, `json`, `avro`, `parquet`, `orc`, and `malformed` for bad lines."""
