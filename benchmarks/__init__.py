"""Measurements. `make bench` runs them all and prints a table; figures are ratios within the same run."""
