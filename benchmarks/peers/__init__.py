"""The same jobs on PyFlink, bytewax, Spark's own stateful Python and Tidegate. `python -m benchmarks.peers`."""
