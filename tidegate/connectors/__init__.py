"""Connectors, a folder or module per system; programs import them from `tidegate.datastream.connectors`."""
