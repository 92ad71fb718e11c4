"""The same sink on an S3-compatible server that runs on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.connectors.file_sink_kit import Subtask, lines_sink
from tidegate.connectors.files.part_files import OutputFileError
from tidegate.datastream.connectors.file_system import RollingPolicy


@pytest.fixture
def place(s3_server: tuple[str, Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    endpoint, client = s3_server
    folder = request.node.name

    class Place:
        sink = lines_sink(
            f"s3://bucket/{folder}?endpoint_override={endpoint}",
            RollingPolicy.default_rolling_policy(rollover_interval=10**9),
        )

        @staticmethod
        def objects() -> dict[str, str]:
            found = client.list_objects_v2(Bucket="bucket", Prefix=f"{folder}/").get("Contents", [])
            keys = [o["Key"] for o in found if not o["Key"].endswith("/")]
            read = {
                k.removeprefix(f"{folder}/"): client.get_object(Bucket="bucket", Key=k)["Body"].read().decode()
                for k in keys
            }
            return read

        @staticmethod
        def put(path: str, text: str) -> None:
            client.put_object(Bucket="bucket", Key=f"{folder}/{path}", Body=text.encode())

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
