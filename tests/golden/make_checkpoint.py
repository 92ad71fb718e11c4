"""Makes the golden checkpoint of the current format version: `python -m tests.golden.make_checkpoint`. Records wait
inside a chain in it, which no savepoint has. As for golden savepoints, it is made once per format version."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "unit" / "taskmanager"))

import held_records as kit  # noqa: E402

from tidegate.storage.metadata import FORMAT_VERSION  # noqa: E402
from tidegate.testing.in_process_job import InProcessJob  # noqa: E402


def main() -> None:
    target = HERE / f"checkpoint-v{FORMAT_VERSION}"
    if target.exists() and "--force" not in sys.argv:
        raise SystemExit(f"{target} exists already: golden files are not made anew (--force does, before a release)")
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory, kit.watched():
        with InProcessJob(kit.golden_job(Path(directory))) as job:
            kit.fall_behind(job)
            kit.checkpoint(job)
            job.cancel()
        assert kit.held(Path(directory)) > 100
        found = kit.latest(Path(directory))
        shutil.copytree(found, target / found.name)
    print(f"{target}: {sum(1 for p in target.rglob('*') if p.is_file())} files")


if __name__ == "__main__":
    main()
