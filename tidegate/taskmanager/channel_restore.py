"""In-flight elements of an unaligned checkpoint, read back."""

from __future__ import annotations

import pickle

from tidegate.common.errors import SnapshotError
from tidegate.network.elements import EndOfData
from tidegate.network.serialization import Element, deserialize
from tidegate.state.backend import StateSource
from tidegate.storage.handles import ChannelState


def read_channel(state: ChannelState, source: StateSource) -> list[Element]:
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
