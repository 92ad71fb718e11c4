"""Makes the golden savepoint of the current format version: `python -m tests.golden.make_savepoint`.

Run once per format version, before its release; the folder that it makes is never written again, and every later
version has to restore it (tests/unit/taskmanager/test_golden_savepoints.py).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "unit" / "taskmanager"))

from golden_job import golden_job  # noqa: E402

from tidegate.storage.metadata import FORMAT_VERSION  # noqa: E402
from tidegate.testing.in_process_job import InProcessJob  # noqa: E402


def main() -> None:
    target = HERE / f"savepoint-v{FORMAT_VERSION}"
    if target.exists() and "--force" not in sys.argv:
        raise SystemExit(f"{target} exists already: golden files are not made anew (--force does, before a release)")
    shutil.rmtree(target, ignore_errors=True)
    with InProcessJob(golden_job({"execution.checkpointing.interval": "1 h"}, 2, 60, FORMAT_VERSION)) as job:
        job.run()
        job.savepoint(target).run()
        answer = job.answer()
        assert answer is not None
        assert answer.error is None, answer.error
    print(f"{target}: {sum(1 for p in target.rglob('*') if p.is_file())} files")


if __name__ == "__main__":
    main()
