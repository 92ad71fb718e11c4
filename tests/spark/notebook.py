"""`make notebook`: the page docs/running/jupyter.md, tried in a real kernel.

    python -m tests.spark.notebook

The kernel runs in an environment of its own that has ipykernel, and whose folder is not on the path. Not part of
`make test`: the environment is some hundred megabytes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.connectors.cache import UnavailableError
from tests.environments import environment_of
from tests.spark.matrix import REPOSITORY, requirements

PAGE = REPOSITORY / "docs" / "running" / "jupyter.md"

# Runs in the environment, beside the kernel. Cells come as JSON on standard input.
_DRIVER = """
import json, os, sys, time
from queue import Empty
import psutil
from jupyter_client.manager import start_new_kernel

cells, lines = json.load(sys.stdin), {}
manager, client = start_new_kernel(kernel_name="python3")
kernel = psutil.Process(manager.provisioner.pid)

def run(code, interrupt_after=None, seconds=180):
    "What the cell shows: standard output, and the name of its error. `lines`: what its own outputs said, one by one."
    number, shown, error, begun = client.execute(code), "", None, time.monotonic()
    lines.clear()
    while True:
        try:
            message = client.get_iopub_msg(timeout=0.2)
        except Empty:
            message = None
        if interrupt_after is not None and (interrupt_after in shown or interrupt_after == "now"):
            time.sleep(1.0)
            manager.interrupt_kernel()
            interrupt_after = None
        if time.monotonic() - begun > seconds:
            raise SystemExit(f"a cell has not ended in {seconds} s; it shows: {shown!r}\\n{code}")
        if message is None or message["parent_header"].get("msg_id") != number:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream" and content["name"] == "stdout":
            shown += content["text"]
        elif kind in ("display_data", "update_display_data"):
            lines.setdefault(content["transient"]["display_id"], []).append(content["data"]["text/plain"])
        elif kind == "execute_result":
            shown += content["data"]["text/plain"]
        elif kind == "error":
            error = content["ename"] + ": " + content["evalue"]
        elif kind == "status" and content["execution_state"] == "idle":
            return shown, error

def check(what, holds, seen):
    print(("ok      " if holds else "WRONG   ") + what + ("" if holds else f": {seen!r}"), flush=True)
    failures.append(what) if not holds else None

failures = []
shout, background, looking = cells
run("from pyspark.sql import SparkSession\\nspark = SparkSession.builder.master('local[6]').getOrCreate()")
shown, error = run(shout)
check("print() shows in the cell", error is None and all(w in shown for w in ("TO", "BE", "OR", "NOT")), (shown, error))
ends = [texts[-1] for texts in lines.values()]
check("so does the progress, as one output", len(ends) == 1 and ends[0].startswith("Shout is FINISHED: "), lines)

shown, error = run("env.from_collection([1, 0]).map(lambda n: 1 // n).print()\\nenv.execute()")
check("an exception of a function is the cell's error", "ZeroDivisionError" in str(error), (shown, error))

paced = (
    "from tidegate.common import Configuration, WatermarkStrategy\\n"
    "from tidegate.datastream.connectors import DataGeneratorSource\\n"
    "env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)\\n"
    "source = DataGeneratorSource(lambda i: i, 2000, records_per_second=400)\\n"
    "env.from_source(source, WatermarkStrategy.no_watermarks(), 'N').add_sink(lambda n: None)\\n"
    "env.execute('Paced')"
)
shown, error = run(paced)
(texts,) = lines.values()
drawn = [text for text in texts if text.startswith("[")]
check("it moves on in its place, twice a second", error is None and len(drawn) > 2 and "100%" not in drawn[0]
      and len(texts) < 100 and texts[-1].startswith("Paced is FINISHED: 2,000 records"), texts)
run("env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict("
    "{'tidegate.progress.enabled': 'false'}))\\nenv.from_collection([1]).print()\\nenv.execute()")
check("it can be turned off", not lines, lines)
shown, error = run(background)
check("a job in the background leaves its cell", error is None, (shown, error))
shown, error = run("import time\\nfor _ in range(200):\\n    status = job.get_job_status().result().name\\n"
                   "    if status == 'RUNNING': break\\n    time.sleep(0.1)\\nprint(status)")
check("it runs", "RUNNING" in shown, (shown, error))

endless = '''
env = StreamExecutionEnvironment.get_execution_environment()
source = DataGeneratorSource(lambda i: i, records_per_second=100)
stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "N")
'''
shown, error = run(endless + "stream.map(lambda n: n).print()\\nenv.execute('Endless')", interrupt_after="1")
check("an interrupt in execute() ends the cell", "KeyboardInterrupt" in str(error), (shown[-200:], error))
shown, error = run(endless + "for n in stream.execute_and_collect():\\n    print(n)", interrupt_after="5")
check("an interrupt in a loop ends the cell", "KeyboardInterrupt" in str(error), (shown[-200:], error))
run(endless + "results = stream.execute_and_collect()\\nprint(next(results))")
shown, error = run("import time\\nfor n in results:\\n    print(n)\\n    time.sleep(60)", interrupt_after="1")
check("an interrupt in the body of a loop over an earlier cell's results ends the cell",
      "KeyboardInterrupt" in str(error), (shown[-200:], error))
shown, error = run("print('begun', flush=True)\\n"
                   "spark.sparkContext.parallelize([1], 1).foreach(lambda n: time.sleep(120))", interrupt_after="begun")
check("so does one in an action of Spark", "KeyboardInterrupt" in str(error), (shown, error))
shown, error = run("tracker, end = spark.sparkContext.statusTracker(), time.time() + 30\\n"
                   "while len(tracker.getActiveJobsIds()) > 1 and time.time() < end: time.sleep(0.1)\\n"
                   "print(len(tracker.getActiveJobsIds()), 'runs')")
check("of Spark's jobs only that of the background is left", "1 runs" in shown, (shown, error))
shown, error = run(shout)
check("the next cell works", error is None and "NOT" in shown, (shown, error))
shown, error = run("print(job.get_job_status().result().name)")
check("the job in the background has lived on", "RUNNING" in shown, (shown, error))
shown, error = run("class Twice:\\n    factor = 3\\n\\nenv = StreamExecutionEnvironment.get_execution_environment()\\n"
                   "print(sorted(env.from_collection([1, 2]).map(lambda n: n * Twice.factor).execute_and_collect()))")
check("definitions of a cell are used", "[3, 6]" in shown, (shown, error))
shown, error = run("print(spark.read.format('tidegate-state').load(%r).count())" % os.environ["GOLDEN"])
check("tidegate-state is found", error is None and shown.strip().isdigit(), (shown, error))
shown, error = run(looking)
check("cancel returns when the job has ended", error is None, (shown, error))
shown, error = run(background)
below = kernel.children(recursive=True)
manager.shutdown_kernel()
gone, alive = psutil.wait_procs(below, timeout=60)
check("a kernel that is shut down leaves nothing behind", not alive and below, alive)
sys.exit(1 if failures else 0)
"""


def cells() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def main() -> int:
    try:
        program = environment_of("jupyter-3.11", "3.11", [*requirements("4.3.0"), "ipykernel", "nbclient", "nbformat"])
    except UnavailableError as error:
        print(f"left out: {error}")
        return 0
    env = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "PYSPARK_PYTHON", "VIRTUAL_ENV")}
    places = [place for place in env["PATH"].split(os.pathsep) if Path(place) != Path(sys.executable).parent]
    env.update(PATH=os.pathsep.join(places), PYTHONPATH=str(REPOSITORY))
    env["GOLDEN"] = str(REPOSITORY / "tests" / "golden" / "savepoint-v1")
    command = [str(program), "-c", _DRIVER]
    return subprocess.run(command, input=json.dumps(cells()), text=True, env=env, cwd=REPOSITORY).returncode


if __name__ == "__main__":
    sys.exit(main())
