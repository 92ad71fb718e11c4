"""A real Kafka broker from its jars: one node in KRaft mode that can be killed and started again with its data.

The jars come through Spark's own package resolver (Java and PySpark are there already) and are kept in the cache. A
formatted, empty data folder is kept there too: formatting costs a Java start, and every broker of the tests may begin
from the same one. `python -m tests.connectors.broker` runs one until Ctrl-C, for someone who wants to try.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.connectors.cache import UnavailableError, cache_folder, locked

VERSION = "4.3.1"
_PACKAGE = f"org.apache.kafka:kafka_2.13:{VERSION}"
_JAVA_OPTIONS = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
_START_SECONDS = 300  # on a machine that is very busy
_SECURED = ("SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL", "SSL:SSL")
_CLUSTER_ID = "dGlkZWdhdGUtdGVzdHMtMQ"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def class_path() -> str:
    """The class path of a broker; fetches the jars the first time (38 MB)."""
    import pyspark

    folder = cache_folder(f"kafka-{VERSION}")
    done = folder / "fetched"
    with locked(folder):
        if not done.exists():
            _fetch(folder)
            done.touch()
    scala = sorted((Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar"))
    return os.pathsep.join([str(folder / "ivy" / "jars" / "*"), *map(str, scala)])


def _fetch(folder: Path) -> None:
    import pyspark

    program = folder / "nothing.py"
    program.write_text("")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--conf", f"spark.jars.ivy={folder / 'ivy'}", "--packages", _PACKAGE, str(program)]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"Kafka's jars ({_PACKAGE}) could not be fetched by spark-submit: {error}") from error
    if ran.returncode or not list((folder / "ivy" / "jars").glob("*kafka_2.13*.jar")):
        tail = "\n".join((ran.stdout + ran.stderr).splitlines()[-5:])
        raise UnavailableError(
            f"Kafka's jars ({_PACKAGE}) could not be fetched through spark-submit --packages; a machine with access to "
            f"Maven Central, or a filled cache ({folder}), is needed. It said:\n{tail}"
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Broker:
    """`start` returns when the broker answers. `kill` is SIGKILL; what was acknowledged is there after `start`."""

    def __init__(self, folder: Path, settings: dict[str, Any] | None = None, secured: bool = False) -> None:
        """`secured`: two more listeners as the settings say, one with SASL over TLS, one with TLS alone."""
        self.folder = folder
        self.secured_port, self.certified_port = (free_port(), free_port()) if secured else (None, None)
        self.port, self._controller_port = free_port(), free_port()
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    def start(self) -> None:
        classes = class_path()
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self._write_config(self.folder)
        if not (self.folder / "data").exists():
            shutil.copytree(_formatted(classes, config), self.folder / "data")
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [_java(), *_JAVA_OPTIONS, "-cp", classes, "kafka.Kafka", str(config)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        self._wait_until_up()

    def _write_config(self, folder: Path) -> Path:
        listeners = [f"PLAINTEXT://127.0.0.1:{self.port}"]
        if self.secured_port is not None:
            listeners.append(f"SASL_SSL://127.0.0.1:{self.secured_port}")
            listeners.append(f"SSL://127.0.0.1:{self.certified_port}")
        plain = ("PLAINTEXT", "CONTROLLER")
        settings: dict[str, Any] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{self._controller_port}"]),
            "advertised.listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join([*(f"{n}:PLAINTEXT" for n in plain), *_SECURED]),
            "log.dirs": folder / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
            "initial.broker.registration.timeout.ms": 30000,
            "auto.create.topics.enable": "false",
            "log.cleaner.enable": "false",
            "num.network.threads": 2,
            "num.io.threads": 4,
            **self._settings,
        }
        config = folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return config

    def _wait_until_up(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        deadline = time.monotonic() + _START_SECONDS
        quiet = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, "socket.timeout.ms": 1000}
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                try:
                    if AdminClient(quiet).list_topics(timeout=1).brokers:
                        return
                except KafkaException:
                    pass
            time.sleep(0.05)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        self.kill()
        raise UnavailableError(f"The broker in {self.folder} did not come up. The end of its log:\n{tail}")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """The broker is there and does not answer (SIGSTOP)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    # ------------------------------------------------------------ what tests do with it
    def create_topic(self, name: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
        admin.create_topics([topic])[name].result(20)
        return name

    def add_partitions(self, name: str, partitions: int) -> None:
        """Up to so many."""
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_partitions([NewPartitions(name, partitions)])[name].result(20)

    def produce(self, topic: str, values: list[Any], partition: int | None = None) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5})
        where = {} if partition is None else {"partition": partition}
        for value in values:
            producer.produce(topic, value if isinstance(value, bytes) else str(value).encode(), **where)
            producer.poll(0)
        assert producer.flush(20) == 0

    def read(self, topic: str, committed: bool = True, timeout: float = 20) -> list[Any]:
        """All messages up to the present end of each partition, as a reader of committed records sees them."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        try:
            partitions = list(consumer.list_topics(topic, timeout=timeout).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            left, messages = set(partitions), []
            deadline = time.monotonic() + timeout
            while left and time.monotonic() < deadline:
                for message in consumer.consume(10000, 0.1):
                    if message.error() is None:
                        messages.append(message)
                    else:
                        left.discard(message.partition())
            assert not left, f"partitions {left} of {topic} were not read to their end in {timeout} s"
            return messages
        finally:
            consumer.close()

    def values(self, topic: str, committed: bool = True) -> list[str]:
        return [message.value().decode() for message in self.read(topic, committed)]


def _formatted(classes: str, config: Path) -> Path:
    """An empty data folder that a broker may start from."""
    folder = cache_folder(f"kafka-{VERSION}")
    template = folder / "formatted"
    with locked(folder):
        if template.exists():
            return template
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            data = Path(temporary) / "data"
            lines = [line for line in config.read_text().splitlines() if not line.startswith("log.dirs")]
            own = Path(temporary) / "server.properties"
            own.write_text("\n".join([*lines, f"log.dirs={data}"]) + "\n")
            command = [_java(), "-cp", classes, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(own)]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if ran.returncode:
                raise UnavailableError(f"Kafka's data folder could not be formatted:\n{ran.stdout}{ran.stderr}")
            data.rename(template)
    return template


@contextlib.contextmanager
def running_broker(settings: dict[str, Any] | None = None, secured: bool = False) -> Iterator[Broker]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
    broker = Broker(folder, settings, secured)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    try:
        with running_broker() as broker:
            print(f"Kafka {VERSION} at {broker.bootstrap_servers} (log: {broker.log}). Ctrl-C ends it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    except UnavailableError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
