"""The streams of the API: what a program builds its job from."""

from __future__ import annotations

from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.datastream.connected_streams import ConnectedStreams
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.stream import DataStream, DataStreamSink

__all__ = ["CloseableIterator", "ConnectedStreams", "DataStream", "DataStreamSink", "KeyedStream"]
