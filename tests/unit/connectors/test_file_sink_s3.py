"""The same sink on an S3-compatible server that runs on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from file_sink_kit import Subtask, lines_sink

from tidegate.datastream.connectors.file_system import RollingPolicy
from tidegate.storage.part_files import OutputFileError


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Any]]:
    boto3 = pytest.importorskip("boto3")
    moto_server = pytest.importorskip("moto.server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        running = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        host, port = running.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="out")
        yield endpoint, client
        running.stop()


@pytest.fixture
def place(server: tuple[str, Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    endpoint, client = server
    folder = request.node.name

    class Place:
        sink = lines_sink(
            f"s3://out/{folder}?endpoint_override={endpoint}",
            RollingPolicy.default_rolling_policy(rollover_interval=10**9),
        )

        @staticmethod
        def objects() -> dict[str, str]:
            found = client.list_objects_v2(Bucket="out", Prefix=f"{folder}/").get("Contents", [])
            keys = [o["Key"] for o in found if not o["Key"].endswith("/")]
            read = {
                k.removeprefix(f"{folder}/"): client.get_object(Bucket="out", Key=k)["Body"].read().decode()
                for k in keys
            }
            return read

        @staticmethod
        def put(path: str, text: str) -> None:
            client.put_object(Bucket="out", Key=f"{folder}/{path}", Body=text.encode())

    return Place()


def test_every_checkpoint_closes_the_file_and_commits_it(place: Any) -> None:
    task = Subtask(place.sink).write(1, 2)
    task.checkpoint()
    assert all(name.startswith(".inprogress-") for name in place.objects())
    task.complete()
    task.write(3).finish()
    assert sorted(place.objects().values()) == ["1\n2\n", "3\n"]


def test_crashes(place: Any) -> None:
    first = Subtask(place.sink).write(1)
    one = first.checkpoint()
    first.complete()
    first.write(2)
    first.checkpoint()  # never completes
    second = Subtask(place.sink, one, attempt=1)
    second.complete()
    second.write(2, 3)
    two = second.checkpoint()
    third = Subtask(place.sink, two, attempt=2)
    third.complete()
    third.finish()
    assert sorted(place.objects().values()) == ["1\n", "2\n3\n"]


def test_a_finished_object_is_never_replaced(place: Any) -> None:
    task = Subtask(place.sink).write(1)
    task.checkpoint()
    place.put(task.waiting[0].final, "precious")
    with pytest.raises(OutputFileError, match="another file of that name"):
        task.complete()
