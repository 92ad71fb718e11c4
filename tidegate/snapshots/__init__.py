"""Checkpoints and savepoints as data: list and read their state, build and change savepoints. No job, no Spark needed.

Read `docs/state-as-tables.md` first.
"""

from tidegate.snapshots.catalog import StateListing, list_states
from tidegate.snapshots.savepoint_builder import SavepointBuilder
from tidegate.snapshots.state_table import Entry, iterate_state, read_state

__all__ = ["Entry", "SavepointBuilder", "StateListing", "iterate_state", "list_states", "read_state"]
