"""A real ZooKeeper server: PySpark brings its jars along. One node, that can be killed and started again with its data.

`python -m tests.connectors.zookeeper` runs one until Ctrl-C, for someone who wants to try."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.connectors.broker import free_port
from tests.connectors.cache import UnavailableError

_JAVA_OPTIONS = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false"]
_START_SECONDS = 60


class ZooKeeper:
    """`start` returns when the server answers. `kill` is SIGKILL; what was acknowledged is there after `start`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def quorum(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        import pyspark

        jars = Path(pyspark.__file__).parent / "jars"
        if not list(jars.glob("zookeeper-3*.jar")):
            raise UnavailableError(f"this PySpark brings no ZooKeeper along: there is none in {jars}")
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else "java"
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "zoo.cfg"
        config.write_text(
            f"tickTime=200\ndataDir={self.folder / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with open(self.folder / "zookeeper.log", "ab") as log:
            self._process = subprocess.Popen(
                [java, *_JAVA_OPTIONS, "-cp", f"{jars}/*", main, str(config)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join((self.folder / "zookeeper.log").read_text().splitlines()[-10:])
                self.kill()
                raise UnavailableError(f"ZooKeeper did not come up:\n{tail}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"srvr")
            return b"Mode: " in b"".join(iter(lambda: connection.recv(4096), b""))  # not only that it is there
        return False

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


@contextlib.contextmanager
def zookeeper(folder: Path) -> Iterator[ZooKeeper]:
    server = ZooKeeper(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def main() -> None:
    try:
        with tempfile.TemporaryDirectory() as folder, zookeeper(Path(folder)) as server:
            print(server.quorum, flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    except UnavailableError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
