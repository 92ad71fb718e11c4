"""The command line: `tidegate run`, `list`, `savepoint`, `stop`, `cancel`, `inspect`, `checkpoint gc`."""
