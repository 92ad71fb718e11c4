"""Text files: parts, positions, charsets, compression, files that change, folders that are watched."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.connectors.file_source_kit import (
    context,
    drain,
    read_all,
    read_with_restarts,
    replay_everywhere,
    source_of,
)
from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import Duration, Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.files.reading import FileListSplit, MonitorOffset, MonitorSplit
from tidegate.contracts.file_formats import InputFileError
from tidegate.datastream import ProcessFunction
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.connectors.base import Boundedness
from tidegate.datastream.connectors.file_system import (
    FileEnumeratorProvider,
    FileSource,
    FileSplitAssignerProvider,
    StreamFormat,
)
from tidegate.testing.in_process_job import InProcessJob

TEXT = StreamFormat.text_line_format()


def numbered(path: Path, count: int, width: int = 0) -> list[str]:
    lines = [f"{path.name}:{i:0{width}}" for i in range(count)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return lines


# ---------------------------------------------------------------- parts and positions


@settings(max_examples=150, deadline=None)
@given(
    lines=st.lists(st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=["Cs"]), max_size=12)),
    split=st.integers(1, 40),
    final_newline=st.booleans(),
)
def test_every_line_belongs_to_exactly_one_part(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], split: int, final_newline: bool
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    text = "\n".join(lines) + ("\n" if final_newline and lines else "")
    path.write_bytes(text.encode())
    wanted = text.removesuffix("\n").split("\n") if text else []
    if wanted and wanted[0].startswith("\ufeff"):
        wanted[0] = wanted[0][1:]
    parts = source_of(TEXT, path, split_bytes=split)
    read = [
        v for part in [parts.create_splits(1)] for s in part for v in drain(parts.create_reader(s, None, context()))
    ]
    assert read == wanted  # one list, so the parts come in order


@pytest.mark.parametrize("seed", range(15))
def test_restarts_at_random_points_give_what_one_read_gives(tmp_path: Path, seed: int) -> None:
    for name in ("a", "b", "c"):
        numbered(tmp_path / name, 60)
    source = source_of(TEXT, tmp_path, split_bytes=70)
    assert read_with_restarts(source, seed, parallelism=2) == read_all(source, parallelism=2)


def test_replay_from_every_position(tmp_path: Path) -> None:
    numbered(tmp_path / "a", 40)
    with gzip.open(tmp_path / "b.gz", "wt") as file:
        file.write("x\n\ny")
    replay_everywhere(source_of(TEXT, tmp_path, split_bytes=50))
    replay_everywhere(source_of(TEXT, tmp_path), batch=3)


def test_lines_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.formats.text_lines.CHUNK", 8)
    path = tmp_path / "a"
    path.write_text("short\n" + "x" * 100 + "\n\nlast")
    for split in (None, 1, 7, 50):
        assert read_all(source_of(TEXT, path, split_bytes=split)) == ["short", "x" * 100, "", "last"]


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.formats.text_lines.CHUNK", 8)
    monkeypatch.setattr("tidegate.formats.text_lines.MAX_LINE", 1 << 20)
    path = tmp_path / "a"
    path.write_bytes(b"\0" * (1 << 21))
    with pytest.raises(InputFileError, match="longer than 1 MiB"):
        read_all(source_of(TEXT, path))


def test_a_large_file_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "large"
    count = 600_000
    path.write_text("".join(f"{i:020}\n" for i in range(count)))
    source = source_of(TEXT, path, split_bytes=4 << 20)
    splits = source.create_splits(2)
    assert [len(s.parts) for s in splits] == [2, 2]  # type: ignore[attr-defined]
    read = read_all(source, 2, batch=10_000)
    assert len(read) == count
    assert sum(map(int, read)) == count * (count - 1) // 2


def test_empty_files_and_an_empty_folder(tmp_path: Path) -> None:
    assert read_all(source_of(TEXT, tmp_path)) == []
    (tmp_path / "empty").touch()
    (tmp_path / "full").write_text("a\n")
    (tmp_path / "gone.gz").touch()
    assert read_all(source_of(TEXT, tmp_path)) == ["a"]


def test_carriage_returns_and_byte_order_marks(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\r\n\r\n")
    assert read_all(source_of(TEXT, tmp_path)) == ["a", "b\rc", ""]


@pytest.mark.parametrize("charset", ["ISO-8859-1", "utf-16", "utf-16-le", "UTF-16BE", "utf-32", "cp037", "shift_jis"])
def test_charsets(tmp_path: Path, charset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.formats.text_lines.CHUNK", 16)
    # U+0A0A and U+010A hold the bytes of a newline inside and across characters.
    lines = ["first", "", "zweite Zeile", "\u0a0a\u010a\u0a01" if charset.lower().startswith("utf") else "abc", "end"]
    (tmp_path / "a").write_bytes("\n".join(lines).encode(charset))
    source = source_of(StreamFormat.text_line_format(charset), tmp_path, split_bytes=8)
    assert read_all(source) == lines
    replay_everywhere(source)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files(tmp_path: Path, suffix: str, compress: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.formats.text_lines.CHUNK", 32)
    lines = [f"line {i}" for i in range(50)]
    (tmp_path / f"a{suffix}").write_bytes(compress("\n".join(lines).encode()))
    source = source_of(TEXT, tmp_path, split_bytes=10)
    assert read_all(source) == lines
    replay_everywhere(source)


def test_a_torn_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(os.urandom(5000))[:-2000])
    with pytest.raises(InputFileError, match=r"a\.gz"):
        read_all(source_of(StreamFormat.text_line_format("latin-1"), tmp_path))


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\nthr\xffee\n")
    for split in (None, 5):
        with pytest.raises(InputFileError, match=r"a, line 3: not text in the charset utf-8.*0xff"):
            read_all(source_of(TEXT, tmp_path, split_bytes=split), batch=2)
    assert read_all(source_of(StreamFormat.text_line_format("UTF-8", "replace"), tmp_path))[2] == "thr\ufffdee"


# ---------------------------------------------------------------- which files


def test_folders_are_walked_and_hidden_names_left_out(tmp_path: Path) -> None:
    for name in ("a", "x/b", "x/y/c", ".hidden", "_success", "x/.tmp/d", "_temporary/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    assert sorted(read_all(source_of(TEXT, tmp_path))) == ["a", "x/b", "x/y/c"]
    assert read_all(source_of(TEXT, tmp_path / ".hidden", tmp_path / "a", tmp_path / "a")) == [".hidden", "a"]


def test_names_with_spaces_and_signs(tmp_path: Path) -> None:
    (tmp_path / "a b%20#?.txt").write_text("1\n")
    assert read_all(source_of(TEXT, tmp_path)) == ["1"]
    assert read_all(source_of(TEXT, tmp_path.as_uri())) == ["1"]


def test_parts_are_dealt_out_over_the_subtasks(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / str(i)).write_text(f"{i}\n")
    splits = source_of(TEXT, tmp_path).create_splits(3)
    assert [[Path(p.path).name for p in s.parts] for s in splits] == [["0", "3"], ["1", "4"], ["2"]]  # type: ignore[attr-defined]


def test_bad_arguments() -> None:
    with pytest.raises(InputFileError, match="no such file or folder"):
        source_of(TEXT, "/nowhere/at/all").create_splits(1)
    with pytest.raises(TypeError, match="StreamFormat"):
        FileSource.for_record_stream_format("text", "/tmp")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="BulkFormat"):
        FileSource.for_bulk_file_format(TEXT, "/tmp")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no path"):
        FileSource.for_record_stream_format(TEXT)
    with pytest.raises(ConfigurationError, match="charset"):
        StreamFormat.text_line_format("klingon")
    with pytest.raises(ConfigurationError, match="errors"):
        StreamFormat.text_line_format("utf-8", "whatever")
    builder = FileSource.for_record_stream_format(TEXT, "/tmp")
    with pytest.raises(ConfigurationError, match="Duration"):
        builder.monitor_continuously(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="FileEnumeratorProvider"):
        builder.set_file_enumerator(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="FileSplitAssignerProvider"):
        builder.set_split_assigner(None)  # type: ignore[arg-type]
    builder.set_split_assigner(FileSplitAssignerProvider.locality_aware_split_assigner())
    assert builder.build().boundedness is Boundedness.BOUNDED
    assert builder.build().get_produced_type() == Types.STRING()
    assert FileEnumeratorProvider.default_non_splittable_file_enumerator().split_bytes is None


# ---------------------------------------------------------------- files that change


def test_a_file_that_vanishes_or_changes(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def begun(lines: int = 3) -> tuple[Any, Any]:
        numbered(path, lines)
        source = source_of(TEXT, tmp_path)
        return source, source.create_splits(1)[0]

    source, split = begun()
    path.unlink()
    with pytest.raises(InputFileError, match=r"/a has vanished since it was found"):
        drain(source.create_reader(split, None, context()))

    source, split = begun()
    path.write_text("something else")
    with pytest.raises(InputFileError, match=r"/a has changed since it was found .*bytes then"):
        drain(source.create_reader(split, None, context()))

    source, split = begun()
    reader = source.create_reader(split, None, context())
    reader.poll(1)
    with path.open("a") as file:
        file.write("more\n")
    with pytest.raises(InputFileError, match=r"/a has changed while it was read"):
        drain(reader)

    source, split = begun()
    reader = source.create_reader(split, None, context())
    reader.poll(1)
    path.unlink()
    with pytest.raises(InputFileError, match=r"/a has vanished while it was read"):
        drain(reader)

    source, split = begun(400_000)  # more than is read ahead
    reader = source.create_reader(split, None, context())
    reader.poll(1)
    os.truncate(path, 2_000_000)
    with pytest.raises(InputFileError, match="has changed while it was read"):
        drain(reader, 10_000)

    source, split = begun()
    reader = source.create_reader(split, None, context())
    reader.poll(1)
    offset = reader.offset()
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputFileError, match="time of change"):
        drain(source.create_reader(split, offset, context()))


# ---------------------------------------------------------------- watching


def watching(path: Path) -> FileSource:
    return FileSource.for_record_stream_format(TEXT, str(path)).monitor_continuously(Duration.of_seconds(1)).build()


class Watcher:
    """A watched folder: its enumerator, and the readers of all that it finds, one after the other."""

    def __init__(self, source: FileSource, saved: bytes | None = None) -> None:
        self._source = pickle.loads(pickle.dumps(source))
        assert self._source.create_splits(2) == []
        self._enumerator = self._source.create_enumerator(2)
        self._known: set[str] = set()
        self._open: list[tuple[Any, Any]] = []  # split, reader
        if saved is not None:
            self._known, entries = pickle.loads(saved)
            self._open = [(s, self._source.create_reader(s, offset, context())) for s, offset in entries]

    def look(self) -> list[Any]:
        splits = list(self._enumerator.discover(frozenset(self._known)).splits)
        self._known |= {name for split in splits for name in split.names}
        self._open += [(split, self._source.create_reader(split, None, context())) for split in splits]
        return splits

    def read(self, polls: int = 1000, batch: int = 10) -> list[str]:
        found = []
        for _ in range(polls):
            if self._open:
                polled = self._open[0][1].poll(batch)
                if polled is None:
                    self._open.pop(0)
                else:
                    found += polled
        return found

    def save(self) -> bytes:
        return pickle.dumps((self._known, [(split, reader.offset()) for split, reader in self._open]))

    @property
    def idle(self) -> list[bool]:
        return [reader.idle for _, reader in self._open]


def test_new_files_are_found_and_read_once(tmp_path: Path) -> None:
    source = watching(tmp_path)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    assert source.discovery_interval_ms == 1000
    assert source.reads_in_turn
    wanted = numbered(tmp_path / "a", 5)
    watcher = Watcher(source)
    watcher.look()
    assert watcher.read() == wanted
    more = numbered(tmp_path / "b", 5)
    assert watcher.read() == []
    watcher.look()
    assert watcher.read() == more
    assert watcher.look() == []


def test_found_files_are_dealt_out_over_the_subtasks_oldest_first(tmp_path: Path) -> None:
    for number, name in enumerate("edcba"):
        numbered(tmp_path / name, 1)
        os.utime(tmp_path / name, ns=(number, number))
    watcher = Watcher(watching(tmp_path))
    assert [[Path(part.path).name for part in split.parts] for split in watcher.look()] == [["e", "c", "a"], ["d", "b"]]
    assert watcher.idle == [True, True]  # what waits for its turn holds nobody's time back
    watcher.read(1)
    assert watcher.idle == [False, True]


def test_a_watched_folder_after_a_restart(tmp_path: Path) -> None:
    source = watching(tmp_path)
    first = [line for name in "abcdef" for line in numbered(tmp_path / name, 10)]
    for polls in range(0, 40, 3):
        watcher = Watcher(source)
        watcher.look()
        before = watcher.read(polls, 3)
        after = Watcher(source, watcher.save())
        after.look()
        assert sorted(before + after.read()) == sorted(first)
    newest = numbered(tmp_path / "newest", 3)
    again = Watcher(source, after.save())
    again.look()
    assert again.read() == newest


def test_a_file_that_changes_after_it_was_read_is_not_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbered(tmp_path / "a", 2)
    watcher = Watcher(watching(tmp_path))
    watcher.look()
    watcher.read()
    numbered(tmp_path / "a", 3)
    for _ in range(3):
        assert watcher.look() == []
    assert len(caplog.records) == 1
    assert "a was changed after it had been read" in caplog.text
    caplog.clear()
    assert Watcher(watching(tmp_path), watcher.save()).look() == []
    assert "a was changed after it had been read" in caplog.text


def test_a_watched_folder_that_vanishes(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    watcher = Watcher(watching(folder))
    watcher.look()
    folder.rmdir()
    with pytest.raises(InputFileError, match="no such file or folder"):
        watcher.look()


def test_the_enumerator_of_a_job_that_went_back_finds_again_what_it_had_found(tmp_path: Path) -> None:
    source = watching(tmp_path)
    enumerator = source.create_enumerator(1)
    numbered(tmp_path / "a", 1)
    (split,) = enumerator.discover(frozenset()).splits
    assert enumerator.discover(frozenset(split.names)).splits == []
    assert [s.names for s in enumerator.discover(frozenset()).splits] == [split.names]


def test_lanes_of_older_snapshots_are_read_on(tmp_path: Path) -> None:
    """Until version 0.1 a watched folder was cut into lanes by the hash of the names."""
    source = watching(tmp_path)
    for name in "ab":
        numbered(tmp_path / name, 10)
    done, half = sorted(source.create_enumerator(1).discover(frozenset()).splits[0].parts, key=lambda part: part.path)
    reader = source.create_reader(FileListSplit.of_found([half]), None, context())
    before = reader.poll(4)
    lane = MonitorOffset({done.path: (done.size, done.modified_ns)}, half, reader.offset()[1])
    entries = source.restored_splits(MonitorSplit("lane-0", 0, 16), lane, False)
    assert source.restored_splits(MonitorSplit("lane-1", 1, 16), None, False) == []
    known = {name for split, _, _ in entries for name in split.names}
    assert source.create_enumerator(1).discover(known).splits == []
    ((split, offset),) = [(split, offset) for split, offset, is_done in entries if not is_done]
    rest = drain(source.create_reader(split, offset, context()))
    assert len(before) == 4
    assert [*before, *rest] == (tmp_path / "b").read_text().splitlines()


# ---------------------------------------------------------------- in a job


class _Stamp(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value)


def test_a_watching_job_with_a_crash_and_event_time(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    env = environment({"execution.checkpointing.interval": "100 ms", "restart-strategy.type": "fixed-delay"})
    env.set_parallelism(2)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_Stamp())
    stream = env.from_source(watching(folder), strategy, "files").map(str.strip)
    stream.sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run()
        wanted = []
        for n in range(6):
            lines = [str(n * 10 + i) for i in range(10)]
            (folder / f"f{n}").write_text("".join(f"{line}\n" for line in lines))
            wanted += lines
            job.advance(1500)
            if n == 2:
                job.slots[0].muted = True  # as if its process had died
        job.advance(20_000)
        assert job.master.failures
        assert sorted(map(int, job.results)) == list(map(int, wanted))
        job.cancel()


class _Watermarks(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timer_service().current_watermark()


def test_lanes_without_files_do_not_hold_the_watermark_back(tmp_path: Path) -> None:
    env = environment({"pipeline.auto-watermark-interval": "50 ms"}, parallelism=1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_Stamp())
    env.from_source(watching(tmp_path), strategy, "files").process(_Watermarks()).sink_to(CollectSink())
    with InProcessJob(env) as job:
        (tmp_path / "same-lane").write_text("100\n")
        job.run()
        job.advance(900)
        (tmp_path / "f2").write_text("200\n")
        job.advance(3000)
        (tmp_path / "f3").write_text("300\n")
        job.advance(3000)
        (tmp_path / "f4").write_text("400\n")
        job.advance(3000)
        job.cancel()
    seen = dict(job.results)
    assert list(seen) == ["100", "200", "300", "400"]
    assert seen["100"] < 0
    assert seen["400"] >= 99
