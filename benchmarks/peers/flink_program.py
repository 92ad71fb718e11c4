"""One program for PyFlink and for Tidegate: only the imports differ. Its settings are its only argument."""

from __future__ import annotations

import importlib
import json
import sys
import time

settings = json.loads(sys.argv[1])
sys.path.insert(0, settings["code"])

from benchmarks.peers.trace import Pace, Trace  # noqa: E402


def load(module):
    return importlib.import_module(f"{settings['system']}.{module}")


common, datastream = load("common"), load("datastream")
Configuration, Time, Types, WatermarkStrategy = (
    common.Configuration,
    common.Time,
    common.Types,
    common.WatermarkStrategy,
)
KeyedProcessFunction, ProcessWindowFunction = datastream.KeyedProcessFunction, datastream.ProcessWindowFunction
MapFunction, StreamExecutionEnvironment = datastream.MapFunction, datastream.StreamExecutionEnvironment
NumberSequenceSource = load("datastream.connectors.number_seq").NumberSequenceSource
ValueStateDescriptor = load("datastream.state").ValueStateDescriptor
TumblingEventTimeWindows = load("datastream.window").TumblingEventTimeWindows
TimestampAssigner = load("common.watermark_strategy").TimestampAssigner

KEYS, COUNT, RATE = settings["keys"], settings["count"], settings["per_second"]
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
AGED = Types.TUPLE([Types.LONG(), Types.DOUBLE()])


class Read(MapFunction):
    """Numbers become (key, number); held to a rate when there is one."""

    def __init__(self):
        self.trace = Trace(settings["folder"])
        self.pace = Pace(RATE) if RATE else None

    def map(self, i):
        self.trace.read()
        if self.pace is not None:
            self.pace.wait()
        return i % KEYS, i


class ReadAged(Read):
    def map(self, i):
        key, _ = super().map(i)
        return key, time.time()


class Count(KeyedProcessFunction):
    """W1: a counter per key. What is written is what has reached, or passed, the right count."""

    def __init__(self):
        self.trace = Trace(settings["folder"])

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if count >= COUNT // KEYS or settings["progress"]:
            self.trace.out(value[0], count)
        yield value[0], count


class Age(KeyedProcessFunction):
    def __init__(self):
        self.trace = Trace(settings["folder"])

    def process_element(self, value, ctx):
        self.trace.late(time.time() - value[1])
        yield value


class Stamped(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Write(ProcessWindowFunction):
    def __init__(self):
        self.trace = Trace(settings["folder"])

    def process(self, key, context, elements):
        for element in elements:
            self.trace.out(key, context.window().start, element[1])
        return []


def main():
    configuration = Configuration()
    for key, value in settings["configuration"].items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(settings["parallelism"])
    if settings["checkpoints_ms"]:
        env.enable_checkpointing(settings["checkpoints_ms"])
    numbers = env.from_source(NumberSequenceSource(0, COUNT - 1), WatermarkStrategy.no_watermarks(), "numbers")
    job = settings["job"]
    if job == "latency":
        aged = numbers.map(ReadAged(), AGED).key_by(lambda v: v[0], Types.LONG()).process(Age(), AGED)
        aged.filter(lambda v: False).print()
    elif job == "window":
        stamped = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamped())
        pairs = numbers.map(Read(), PAIR).assign_timestamps_and_watermarks(stamped)
        ones = pairs.map(lambda v: (v[0], 1), PAIR)
        windows = ones.key_by(lambda v: v[0], Types.LONG()).window(
            TumblingEventTimeWindows.of(Time.milliseconds(settings["window_ms"]))
        )
        windows.reduce(lambda a, b: (a[0], a[1] + b[1]), Write(), PAIR).print()
    else:
        counts = numbers.map(Read(), PAIR).key_by(lambda v: v[0], Types.LONG()).process(Count(), PAIR)
        counts.filter(lambda v: False).print()
    env.execute(job)


if __name__ == "__main__":
    main()
