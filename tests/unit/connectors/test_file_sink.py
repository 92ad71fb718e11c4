from __future__ import annotations

import os
import pickle
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.connectors.file_sink_kit import Clock, Subtask, hidden, lines, lines_sink, visible
from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.serialization import Encoder
from tidegate.connectors.files.part_files import LocalPartFiles, OutputFileError
from tidegate.datastream.connectors.file_system import (
    BucketAssigner,
    BucketContext,
    FileSink,
    OutputFileConfig,
    PartFileInfo,
    RollingPolicy,
    StreamingFileSink,
)

ON_CHECKPOINT = RollingPolicy.on_checkpoint_rolling_policy()
DEFAULT = RollingPolicy.default_rolling_policy()
POLICIES = pytest.mark.parametrize("policy", [ON_CHECKPOINT, DEFAULT], ids=["on-checkpoint", "default"])


# ---------------------------------------------------------------- life cycle


def test_nothing_is_visible_before_the_checkpoint_is_complete(tmp_path: Path) -> None:
    task = Subtask(lines_sink(tmp_path, ON_CHECKPOINT)).write(1, 2)
    assert visible(tmp_path) == {}
    task.checkpoint()
    assert visible(tmp_path) == {}
    task.complete()
    assert lines(tmp_path) == ["1", "2"]


def test_the_default_policy_keeps_a_file_open_over_checkpoints(tmp_path: Path) -> None:
    task = Subtask(lines_sink(tmp_path, DEFAULT)).write(1)
    task.checkpoint()
    task.complete()
    task.write(2)
    task.checkpoint()
    task.complete()
    assert visible(tmp_path) == {}
    task.finish()
    assert list(visible(tmp_path).values()) == ["1\n2\n"]


@POLICIES
def test_a_finished_job_leaves_only_finished_files(tmp_path: Path, policy: RollingPolicy) -> None:
    Subtask(lines_sink(tmp_path, policy)).write(*range(5)).finish()
    assert lines(tmp_path) == ["0", "1", "2", "3", "4"]
    assert hidden(tmp_path) == []
    assert [p for p in os.listdir(tmp_path) if p.startswith(".")] == []


def test_without_a_checkpoint_a_failed_attempt_leaves_nothing(tmp_path: Path) -> None:
    task = Subtask(lines_sink(tmp_path, DEFAULT)).write(1, 2, 3)
    task.writer.close()
    assert visible(tmp_path) == {}
    assert hidden(tmp_path) == []


# ---------------------------------------------------------------- crashes


@POLICIES
def test_crash_before_the_first_checkpoint(tmp_path: Path, policy: RollingPolicy) -> None:
    sink = lines_sink(tmp_path, policy)
    Subtask(sink).write(1, 2)
    Subtask(sink, attempt=1).write(1, 2, 3).finish()
    assert lines(tmp_path) == ["1", "2", "3"]
    assert hidden(tmp_path) == []


@POLICIES
def test_crash_between_the_snapshot_and_its_completion(tmp_path: Path, policy: RollingPolicy) -> None:
    sink = lines_sink(tmp_path, policy)
    first = Subtask(sink).write(1)
    one = first.checkpoint()
    first.complete()
    first.write(2)
    first.checkpoint()  # never completes
    second = Subtask(sink, one, attempt=1)
    second.complete()
    second.write(2, 3).finish()
    assert lines(tmp_path) == ["1", "2", "3"]
    assert hidden(tmp_path) == []


@POLICIES
def test_crash_after_completion_before_the_commit(tmp_path: Path, policy: RollingPolicy) -> None:
    sink = lines_sink(tmp_path, policy)
    first = Subtask(sink).write(1)
    one = first.checkpoint()
    first.write(2)
    second = Subtask(sink, one, attempt=1)
    second.complete()
    second.write(2).finish()
    assert lines(tmp_path) == ["1", "2"]
    assert hidden(tmp_path) == []


@POLICIES
def test_crash_after_the_commit_commits_again_without_harm(tmp_path: Path, policy: RollingPolicy) -> None:
    sink = lines_sink(tmp_path, policy)
    first = Subtask(sink).write(1)
    one = first.checkpoint()
    first.complete()
    for attempt in (1, 2, 3):
        again = Subtask(sink, one, attempt=attempt)
        again.complete()
        again.write(9)
    last = Subtask(sink, one, attempt=4)
    last.complete()
    last.finish()
    assert lines(tmp_path) == ["1"]
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_disk_that_the_failed_attempt_filled_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpointed: bool
) -> None:
    def used() -> int:
        return sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())

    def write_test(files: LocalPartFiles, job_id: str) -> None:
        if used() > 1000:
            raise OutputFileError("No space left on device")

    sink = lines_sink(tmp_path, DEFAULT)
    first = Subtask(sink).write(1)
    one = first.checkpoint() if checkpointed else None
    first.write("x" * 2000)
    first.writer.flush(False)
    monkeypatch.setattr(LocalPartFiles, "check_writable", write_test)
    assert used() > 2000
    second = Subtask(sink, one, attempt=1)
    second.complete()
    second.write(2).finish()
    assert lines(tmp_path) == (["1", "2"] if checkpointed else ["2"])
    assert hidden(tmp_path) == []


def test_hidden_files_of_ended_runs_are_deleted_when_the_sink_starts_afresh_after_a_week(tmp_path: Path) -> None:
    day = 24 * 3600
    sink, now = lines_sink(tmp_path, DEFAULT), Clock()
    now.ms = time.time() * 1000
    old, restored, busy = ("b" * 32, "c" * 32, "d" * 32)
    for job_id in (old, busy):
        Subtask(sink, job_id=job_id).write(1).writer.flush(False)
        Subtask(sink, job_id=job_id, subtask=1).write(1).writer.flush(False)
    foreign = tmp_path / f".inprogress-{old}" / ".another-0-0-part"
    foreign.write_text("x")
    for age, job_id in ((8, old), (8, busy)):
        for path in (tmp_path / f".inprogress-{job_id}").iterdir():
            os.utime(path, (time.time() - age * day,) * 2)
    newest = next((tmp_path / f".inprogress-{busy}").iterdir())
    os.utime(newest, (time.time() - 6 * day,) * 2)

    one = Subtask(sink, job_id=restored, clock=now).checkpoint()
    gone = [p for p in hidden(tmp_path) if old in p]
    assert gone == [f".inprogress-{old}/.another-0-0-part"]
    assert sum(busy in p for p in hidden(tmp_path)) == 2

    os.utime(newest, (time.time() - 8 * day,) * 2)
    Subtask(sink, one, attempt=1, clock=now)
    Subtask(sink, one, clock=now)
    assert sum(busy in p for p in hidden(tmp_path)) == 2, "a checkpoint that is restored may need them"


def test_crash_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    """Both names exist for a moment: the link was made, the hidden name not yet removed."""
    sink = lines_sink(tmp_path, ON_CHECKPOINT)
    first = Subtask(sink).write(1)
    one = first.checkpoint()
    pending = first.waiting[0]
    os.link(tmp_path / pending.hidden, tmp_path / pending.final)
    Subtask(sink, one, attempt=1).complete()
    assert lines(tmp_path) == ["1"]
    assert hidden(tmp_path) == []


def test_a_worker_that_was_taken_for_dead_writes_on_in_vain(tmp_path: Path) -> None:
    sink = lines_sink(tmp_path, DEFAULT)
    zombie = Subtask(sink).write(1)
    one = zombie.checkpoint()
    second = Subtask(sink, one, attempt=1).write(2)
    zombie.write("zombie")
    zombie.writer.flush(False)
    second.checkpoint()
    second.complete()
    zombie.write("zombie again")
    zombie.writer.flush(False)
    second.finish()
    assert lines(tmp_path) == ["1", "2"]


@POLICIES
@pytest.mark.parametrize("seed", range(25))
def test_random_crashes_lose_and_double_nothing(tmp_path: Path, policy: RollingPolicy, seed: int) -> None:
    rng = random.Random(seed)
    sink = lines_sink(tmp_path, policy)
    saved: bytes | None = None
    position = done = 0
    attempt = 0
    task = Subtask(sink)
    while position < 200:
        task.clock.ms += rng.choice([10, 30_000])
        step = rng.random()
        if step < 0.5:
            count = rng.randint(1, 9)
            task.write(*range(position, position + count))
            position += count
        elif step < 0.75:
            state = task.checkpoint()
            if rng.random() < 0.7:
                saved, done = state, position
                if rng.random() < 0.7:
                    task.complete()
        elif step < 0.9:
            attempt += 1
            if rng.random() < 0.5:
                task.writer.close()
            task, position = Subtask(sink, saved, attempt=attempt), done
            if rng.random() < 0.5:
                task.complete()
    task.finish()
    assert lines(tmp_path) == sorted(map(str, range(position)))
    assert hidden(tmp_path) == []


# ---------------------------------------------------------------- other jobs, other parallelism


@POLICIES
def test_a_new_job_goes_on_from_a_retained_checkpoint(tmp_path: Path, policy: RollingPolicy) -> None:
    sink = lines_sink(tmp_path, policy)
    old = Subtask(sink).write(1)
    one = old.checkpoint()
    old.write(2)
    new = Subtask(sink, one, job_id="b" * 32)
    new.complete()
    new.write(2).finish()
    assert lines(tmp_path) == ["1", "2"]


def test_a_fork_does_not_disturb_the_job_it_came_from(tmp_path: Path) -> None:
    sink = lines_sink(tmp_path, DEFAULT)
    old = Subtask(sink).write(1)
    one = old.checkpoint()
    fork = Subtask(sink, one, job_id="b" * 32).write("fork")
    old.write(2)
    fork.finish()
    old.finish()
    assert lines(tmp_path) == ["1", "1", "2", "fork"]


def test_other_jobs_and_other_subtasks_are_not_touched(tmp_path: Path) -> None:
    sink = lines_sink(tmp_path, ON_CHECKPOINT)
    other_job = Subtask(sink, job_id="b" * 32).write("b")
    other_subtask = Subtask(sink, subtask=1, parallelism=2).write("s")
    Subtask(sink, parallelism=2).write("lost")
    Subtask(sink, attempt=1, parallelism=2).write("mine").finish()
    other_job.finish()
    other_subtask.finish()
    assert lines(tmp_path) == ["b", "mine", "s"]


def test_rescaling_hands_open_files_to_other_subtasks(tmp_path: Path) -> None:
    sink = lines_sink(tmp_path, DEFAULT)
    old = [Subtask(sink, subtask=i, parallelism=2).write(f"old{i}") for i in range(2)]
    parts = [pickle.loads(task.checkpoint()) for task in old]
    for task in old:
        task.write("after the checkpoint")
    merged = pickle.dumps(([c for p in parts for c in p[0]], [s for p in parts for s in p[1]]))
    new = Subtask(sink, merged, job_id="c" * 32)
    new.complete()
    new.write("new").finish()
    assert lines(tmp_path) == ["new", "old0", "old1"]


# ---------------------------------------------------------------- what must not happen


def test_a_finished_file_of_another_run_is_never_replaced(tmp_path: Path) -> None:
    task = Subtask(lines_sink(tmp_path, ON_CHECKPOINT)).write(1)
    task.checkpoint()
    final = tmp_path / task.waiting[0].final
    final.write_text("precious")
    with pytest.raises(OutputFileError, match="another file of that name"):
        task.complete()
    assert final.read_text() == "precious"


def test_a_vanished_pending_file_is_an_error_and_not_a_loss(tmp_path: Path) -> None:
    task = Subtask(lines_sink(tmp_path, ON_CHECKPOINT)).write(1)
    task.checkpoint()
    os.unlink(tmp_path / task.waiting[0].hidden)
    with pytest.raises(OutputFileError, match=r"neither it nor its data .*2 bytes"):
        task.complete()


def test_one_file_that_cannot_be_published_does_not_hold_up_the_others(tmp_path: Path) -> None:
    task = Subtask(lines_sink(tmp_path, ON_CHECKPOINT)).write(1)
    task.checkpoint()
    task.write(2)
    task.checkpoint()
    os.unlink(tmp_path / task.waiting[0].hidden)
    with pytest.raises(OutputFileError):
        task.complete()
    assert lines(tmp_path) == ["2"]


def test_a_folder_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"output folder .*file/out cannot be written to.*rights"):
        Subtask(lines_sink(tmp_path / "file" / "out"))


def test_a_folder_that_cannot_be_written_any_more_is_worth_a_retry(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFileError):
        Subtask(lines_sink(tmp_path / "file" / "out"), attempt=1)


class Picky(Encoder):
    def encode(self, element: Any, stream: Any) -> None:
        stream.write(b"half a rec")
        if element == 13:
            raise ValueError("unlucky")


def test_an_encoder_error_names_the_record_and_ends_the_writer(tmp_path: Path) -> None:
    sink = FileSink.for_row_format(str(tmp_path), Picky()).build()
    task = Subtask(sink)
    with pytest.raises(TidegateError, match="record 13: ValueError: unlucky"):
        task.write(12, 13, 14)
    with pytest.raises(TidegateError, match="failed before"):
        task.checkpoint()
    task.writer.close()
    assert visible(tmp_path) == {}
    assert hidden(tmp_path) == []


# ---------------------------------------------------------------- rolling


def test_rolling_by_size(tmp_path: Path) -> None:
    policy = RollingPolicy.default_rolling_policy(part_size=4)
    Subtask(lines_sink(tmp_path, policy)).write(*range(6)).finish()
    assert sorted(visible(tmp_path).values()) == ["0\n1\n", "2\n3\n", "4\n5\n"]


def test_rolling_by_age_and_by_idleness(tmp_path: Path) -> None:
    for name, policy in (
        ("age", RollingPolicy.default_rolling_policy(rollover_interval=100, inactivity_interval=10**9)),
        ("idle", RollingPolicy.default_rolling_policy(rollover_interval=10**9, inactivity_interval=100)),
    ):
        task = Subtask(lines_sink(tmp_path / name, policy)).write(1)
        task.checkpoint()
        task.complete()
        assert visible(tmp_path / name) == {}
        task.clock.ms += 100
        task.checkpoint()
        task.complete()
        assert lines(tmp_path / name) == ["1"]


def test_age_is_looked_at_between_checkpoints_every_check_interval(tmp_path: Path) -> None:
    policy = RollingPolicy.default_rolling_policy(rollover_interval=100)
    builder = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder()).with_rolling_policy(policy)
    builder.with_bucket_check_interval(50).with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    task = Subtask(builder.build()).write(1)
    task.clock.ms += 100
    task.write(2)
    task.write(3).finish()
    assert sorted(visible(tmp_path).values()) == ["1\n2\n", "3\n"]


class NewFileAtEven(RollingPolicy):
    def should_roll_on_checkpoint(self, part: PartFileInfo) -> bool:
        return False

    def should_roll_on_event(self, part: PartFileInfo, element: Any) -> bool:
        return element % 2 == 0

    def should_roll_on_processing_time(self, part: PartFileInfo, current_time: float) -> bool:
        return False


def test_a_policy_of_the_users_own(tmp_path: Path) -> None:
    Subtask(lines_sink(tmp_path, NewFileAtEven())).write(1, 2, 3, 4).finish()
    assert sorted(visible(tmp_path).values()) == ["1\n", "2\n3\n", "4\n"]


# ---------------------------------------------------------------- buckets and names


class ByFirstLetter(BucketAssigner):
    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        return f"letter={element[0]}"


def test_buckets(tmp_path: Path) -> None:
    task = Subtask(lines_sink(tmp_path, ON_CHECKPOINT, ByFirstLetter()))
    task.write("apple", "bee", "ant").finish()
    assert {p.partition("/")[0]: c for p, c in visible(tmp_path).items()} == {
        "letter=a": "apple\nant\n",
        "letter=b": "bee\n",
    }


class ByItself(BucketAssigner):
    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        return str(element)


def test_more_buckets_than_files_may_be_open(tmp_path: Path) -> None:
    task = Subtask(lines_sink(tmp_path, DEFAULT, ByItself()))
    task.write(*range(300))
    assert len(task.writer._parts) <= 128
    task.finish()
    assert lines(tmp_path) == sorted(map(str, range(300)))


@pytest.mark.parametrize("bucket", ["/x", "../x", "a//b", ".x", "_x", "a/_b", "x/"])
def test_bucket_ids_that_lead_out_or_would_be_hidden_are_refused(tmp_path: Path, bucket: str) -> None:
    with pytest.raises(ConfigurationError, match="not a bucket id"):
        Subtask(lines_sink(tmp_path, DEFAULT, ByItself())).write(bucket)


def test_the_date_time_assigner_takes_java_patterns() -> None:
    at = BucketContext(1_700_000_000_000, None)  # 2023-11-14 22:13:20 UTC
    default = BucketAssigner.date_time_bucket_assigner(timezone_id="UTC")
    assert default.get_bucket_id(1, at) == "2023-11-14--22"
    other = BucketAssigner.date_time_bucket_assigner("'dt='yyyyMMdd/'h''s'-HHmmss", "Europe/Paris")
    assert other.get_bucket_id(1, at) == "dt=20231114/h's-231320"


@pytest.mark.parametrize("pattern", ["yyyy-QQ", "'open", "", "'.'yyyy"])
def test_patterns_that_are_not_understood_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError):
        BucketAssigner.date_time_bucket_assigner(pattern)


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        BucketAssigner.date_time_bucket_assigner(timezone_id="Mars/Base")


def test_names_of_files(tmp_path: Path) -> None:
    names = OutputFileConfig.builder().with_part_prefix("words").with_part_suffix(".txt").build()
    assert (names.get_part_prefix(), names.get_part_suffix()) == ("words", ".txt")
    builder = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder()).with_output_file_config(names)
    builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    Subtask(builder.build(), subtask=3, parallelism=4).write(1).finish()
    (name,) = visible(tmp_path)
    assert name.startswith("words-3-")
    assert name.endswith("-0.txt")


def test_bad_arguments_are_told_at_once(tmp_path: Path) -> None:
    builder = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder())
    for wrong in (
        lambda: FileSink.for_row_format("", Encoder.simple_string_encoder()),
        lambda: FileSink.for_row_format("ftp://x/y", Encoder.simple_string_encoder()),
        lambda: builder.with_bucket_check_interval(0),
        lambda: RollingPolicy.default_rolling_policy(part_size=0),
        lambda: OutputFileConfig.builder().with_part_prefix("_x").build(),
        lambda: OutputFileConfig.builder().with_part_suffix("a/b").build(),
    ):
        with pytest.raises(ConfigurationError):
            wrong()
    for mistyped in (
        lambda: FileSink.for_row_format(str(tmp_path), "utf-8"),  # type: ignore[arg-type]
        lambda: builder.with_bucket_assigner("x"),  # type: ignore[arg-type]
        lambda: builder.with_rolling_policy(None),  # type: ignore[arg-type]
        lambda: builder.with_output_file_config("x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            mistyped()


def test_the_old_name_is_the_same_sink() -> None:
    assert StreamingFileSink is FileSink
