"""The streams of the API: what a program builds its job from."""

from __future__ import annotations

from tidegate.datastream.broadcast_streams import BroadcastConnectedStream, BroadcastStream
from tidegate.datastream.cached_stream import CachedDataStream
from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.datastream.connected_streams import ConnectedStreams
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.stream import DataStream, DataStreamSink
from tidegate.datastream.windowed_stream import AllWindowedStream, WindowedStream

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CachedDataStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "WindowedStream",
]
