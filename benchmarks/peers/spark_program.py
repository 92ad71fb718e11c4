"""The jobs on Spark's own stateful Python, `applyInPandasWithState`; windows are those of Structured Streaming."""

from __future__ import annotations

import json
import os
import sys
import time

settings = json.loads(sys.argv[1])
sys.path.insert(0, settings["code"])

import pandas as pd  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402
from pyspark.sql.streaming.state import GroupStateTimeout  # noqa: E402

from benchmarks.peers.trace import Trace  # noqa: E402

KEYS, COUNT, RATE, FOLDER = settings["keys"], settings["count"], settings["per_second"], settings["folder"]
JOB = settings["job"]
trace = Trace(FOLDER)


def session():
    builder = SparkSession.builder.master(f"local[{settings['parallelism']},8]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", str(settings["parallelism"]))
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF")
    return builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()


def counted(key, frames, state):
    """As its users write it: a call per key and micro-batch."""
    count = state.get[0] if state.exists else 0
    count += sum(len(frame) for frame in frames)
    state.update((count,))
    if count >= COUNT // KEYS or settings["progress"]:
        trace.out(int(key[0]), count)
    yield pd.DataFrame({"key": [key[0]], "count": [count]})


def aged(key, frames, state):
    for frame in frames:
        now = time.time()
        for stamp in frame["at"]:
            trace.late(now - stamp)
    yield pd.DataFrame({"key": [key[0]], "count": [0]})


def numbers(spark):
    """In micro-batches: what has come meanwhile when there is a rate, else the files of a folder, one at a time."""
    if RATE:
        rate = int(RATE) * settings["parallelism"]
        rows = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
        # The source hands out whole seconds: the wait for the end of one is not counted.
        waited = (rate - F.col("value") % rate) / rate
        return rows.withColumn("at", F.col("timestamp").cast("double") + waited).withColumn("id", F.col("value"))
    source = os.path.join(settings["scratch"], "numbers")
    if not os.path.isdir(source):
        files = settings["files"]
        for part in range(files):
            begin, end = part * COUNT // files, (part + 1) * COUNT // files
            spark.range(begin, end, 1, 1).write.mode("append").parquet(source)
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(source)


def main():
    spark = session()
    stream = numbers(spark).withColumn("key", F.col("id") % KEYS)
    if JOB == "window":
        at = stream.withColumn("at", (F.col("id") / 1000).cast("timestamp")).withWatermark("at", "1 second")
        size = f"{settings['window_ms']} milliseconds"
        result = (
            at.groupBy(F.window("at", size), "key")
            .count()
            .select((F.unix_millis("window.start")).alias("start"), "key", "count")
        )
    else:
        function = aged if JOB == "latency" else counted
        result = stream.groupBy("key").applyInPandasWithState(
            function, "key long, count long", "count long", "update", GroupStateTimeout.NoTimeout
        )
    totals = {}

    def take(batch, number):
        rows = batch.collect()
        if JOB == "window":
            totals.update({(row.key, row.start): row["count"] for row in rows})

    query = result.writeStream.outputMode("update").foreachBatch(take)
    query = query.option("checkpointLocation", os.path.join(settings["scratch"], "checkpoint"))
    if RATE:
        query = query.start()
        deadline, read = time.time() + 120, 0
        while read < COUNT and time.time() < deadline and not query.awaitTermination(0.2):
            read = sum(p["numInputRows"] for p in query.recentProgress)
        query.stop()
        return
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    for (key, start), total in totals.items():
        trace.out(key, start, total)
    progress = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
    # The first micro-batch starts Python and compiles: rates are those of the others.
    print("RATE " + json.dumps(COUNT * (1 - 1 / len(progress)) / (sum(progress[1:]) / 1000)), flush=True)


if __name__ == "__main__":
    main()
