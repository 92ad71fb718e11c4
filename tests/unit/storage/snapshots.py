"""Small metadata for tests."""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

from tidegate.storage.handles import (
    CheckpointMetadata,
    KeyedChunk,
    KeyedIncrement,
    KeyedSnapshot,
    KeyedStateInfo,
    OperatorListState,
    OperatorMetadata,
    OperatorSnapshot,
    TaskSnapshot,
)
from tidegate.storage.metadata import FORMAT_VERSION


def keyed(chain):
    """`chain`: [(checkpoint id, [handle, ...]), ...]"""
    return KeyedSnapshot(
        backend="heap",
        key_group_start=0,
        key_group_end=128,
        states=[KeyedStateInfo(name="v", kind="value")],
        increments=[
            KeyedIncrement(
                checkpoint_id=n, full=i == 0, chunks=[KeyedChunk(state="v", entries=1, handle=h) for h in handles]
            )
            for i, (n, handles) in enumerate(chain)
        ],
    )


def operator(chain=None, lists=()):
    return OperatorSnapshot(
        operator_id="a" * 32,
        name="counter",
        keyed=keyed(chain) if chain is not None else None,
        lists=[OperatorListState(name=f"l{i}", mode="split", count=1, handle=h) for i, h in enumerate(lists)],
    )


def task(chain=None, lists=()):
    return TaskSnapshot(vertex=0, subtask=0, operators=[operator(chain, lists)])


def checkpoint(checkpoint_id, chain=None, lists=()):
    return CheckpointMetadata(
        format_version=FORMAT_VERSION,
        job_id="job",
        job_name="a job",
        checkpoint_id=checkpoint_id,
        timestamp=1,
        savepoint=False,
        unaligned=False,
        operators=[
            OperatorMetadata(
                operator_id="a" * 32,
                name="counter",
                uid="",
                parallelism=1,
                max_parallelism=128,
                subtasks=[operator(chain, lists)],
                end_of_data=[False],
            )
        ],
        channels=[],
        tidegate_version="0",
    )


def of_a_newer_version(encoded):
    """An encoded metadata file, as a later version of the format would be."""
    newer = encoded[:8] + struct.pack("<I", FORMAT_VERSION + 1) + encoded[12:-8]
    return newer + struct.pack("<Q", xxh3_64_intdigest(newer))
