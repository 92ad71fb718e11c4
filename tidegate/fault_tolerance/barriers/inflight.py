"""Records that were on their way when a checkpoint was taken, put back into the channels of a task, and between its
operators."""

from __future__ import annotations

import pickle

from tidegate.common.errors import SnapshotError
from tidegate.contracts.batches import Batch
from tidegate.fault_tolerance.task_side import TaskPort
from tidegate.network.channels import InputChannel
from tidegate.network.elements import EndOfData
from tidegate.network.serialization import Element, deserialize
from tidegate.state.backend import StateSource
from tidegate.storage.handles import CHAIN, ChannelState, MovedChannel, TaskRestore


def restore_channels(port: TaskPort, restore: TaskRestore, source: StateSource) -> None:
    """Raises SnapshotError when something cannot be read."""
    inputs = {(port.edge_key(c.address), c.address.upstream): c for c in port.inputs}
    outputs = {(port.edge_key(c.address), c.address.downstream): c for c in port.out_channels}
    for state in restore.channels:
        elements = _read_channel(state, source)
        if state.side == CHAIN:
            port.restore_waiting(state.edge_key, elements)
        elif state.side == "input":
            inputs[state.edge_key, state.upstream].restore(elements)
        else:
            outputs[state.edge_key, state.downstream].restore(elements)
    moved: dict[InputChannel, list[Element]] = {}
    for one in restore.moved:
        into = inputs[one.channel.edge_key, one.upstream]
        moved.setdefault(into, []).extend(_read_moved(port, one, source))
    for into, elements in moved.items():
        into.restore(elements)
    if moved:
        port.put_restored_first()


def _read_channel(state: ChannelState, source: StateSource) -> list[Element]:
    """Without `EndOfData`: a sender that was at its end comes to it again after the restore, and says so again."""
    data = source.read(state.handle)
    try:
        elements = [deserialize(kind, payload) for kind, payload in pickle.loads(data)]
    except Exception as error:
        raise SnapshotError(
            f"the in-flight records of channel {state.edge_key} ({state.upstream} to {state.downstream}) "
            f"cannot be unpickled: {error!r}"
        ) from error
    return [e for e in elements if not isinstance(e, EndOfData)]


def _read_moved(port: TaskPort, moved: MovedChannel, source: StateSource) -> list[Element]:
    """The batches of a channel of another subtask, from before the parallelism was changed. Watermarks are left out:
    each sender tells its own again."""
    batches = [e for e in _read_channel(moved.channel, source) if isinstance(e, Batch)]
    if moved.own_keys:
        batches = [port.own_records(moved.channel.edge_key, batch) for batch in batches]
    return [batch for batch in batches if len(batch)]
