"""Working state in Python dicts."""
