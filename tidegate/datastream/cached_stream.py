"""CachedDataStream: a stream whose records are kept, so that later jobs need not compute them again."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.common import options
from tidegate.connectors.record_cache import CacheSink, CacheSource, delete_cache
from tidegate.datastream.stream import DataStream
from tidegate.graph.operator_specs import SinkSpec, SourceSpec
from tidegate.graph.transformations import SinkTransformation, SourceTransformation, Transformation
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    from tidegate.common.job_client import JobClient
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment


class CachedDataStream(DataStream):
    """Made by `DataStream.cache`. The first job that computes the stream stores its records in files, below
    `tidegate.cache.dir` (by default a temporary folder of this machine). What is built from this stream after that job
    has finished reads them; before, and after `invalidate`, it computes them.

    The files go with `invalidate`, with `close` of the environment, and at the end of the program.
    """

    def __init__(self, stream: DataStream) -> None:
        self._environment = stream._environment
        self._computed = stream._transformation
        self._runs: list[tuple[JobClient, StorageLocation]] = []  # jobs that store the records, and where
        self._reading: tuple[StorageLocation, SourceTransformation] | None = None  # what is read, and the source of it
        self._environment._caches.append(self)

    @property
    def _transformation(self) -> Transformation:  # type: ignore[override]
        """Asked for whenever something is built from this stream, or set for it."""
        folder = self._stored()
        if folder is None:
            return self._computed
        if self._reading is None or self._reading[0] != folder:
            spec = SourceSpec(CacheSource(folder, self._computed.output_type))
            source = SourceTransformation(f"Cached {self._computed.name}", spec, output_type=self._computed.output_type)
            self._reading = folder, source
        return self._reading[1]

    def invalidate(self) -> None:
        """Delete what is stored. The next job that computes the stream stores it again."""
        runs, self._runs = self._runs, []
        self._reading = None
        for _, folder in runs:
            with contextlib.suppress(OSError):
                delete_cache(folder)

    # ------------------------------------------------------------ for the environment

    def _stored(self) -> StorageLocation | None:
        """Where the records are, when a job has stored all of them."""
        for client, folder in self._runs:
            future = client.get_job_execution_result()
            if future.done() and future.exception() is None:
                return folder
        return None

    def _new_run(self) -> SinkTransformation:
        """The sink that stores the records in the next job."""
        folder = cache_folder(self._environment).child(uuid.uuid4().hex)
        sink = SinkTransformation("Cache", SinkSpec(CacheSink(folder)), (self._computed,))
        if self._computed.parallelism is not None:
            sink.parallelism = self._computed.parallelism
        return sink

    def _run_started(self, sink: SinkTransformation, client: JobClient) -> None:
        spec: Any = sink.spec
        self._runs.append((client, spec.sink.folder))

    def _needs_run(self, operators: Iterable[Transformation]) -> bool:
        """Whether a job of these operators computes the stream, and nobody has stored it yet."""
        if self._stored() is not None:
            return False
        seen: set[int] = set()
        stack = list(operators)
        while stack:
            transformation = stack.pop()
            if transformation is self._computed:
                return True
            if transformation.id not in seen:
                seen.add(transformation.id)
                stack.extend(transformation.inputs)
        return False


def cache_folder(environment: StreamExecutionEnvironment) -> StorageLocation:
    """The environment's own folder for caches; made when it is first asked for, deleted with the
    environment."""
    if environment._cache_folder is None:
        base: str | None = options.read(environment._configuration, options.CACHE_DIR)
        if base is None:
            folder = StorageLocation.parse(tempfile.mkdtemp(prefix="tidegate-cache-"))
        else:
            permissions = options.read(environment._configuration, options.STORAGE_PERMISSIONS)
            folder = (
                StorageLocation.parse(base).with_permissions(permissions).child(f"tidegate-cache-{uuid.uuid4().hex}")
            )
        environment._cache_folder = folder
        environment._delete_caches = weakref.finalize(environment, _delete_quietly, folder)
    return environment._cache_folder


def _delete_quietly(folder: StorageLocation) -> None:
    with contextlib.suppress(Exception):  # at the end of the program nobody can be told
        delete_cache(folder)
