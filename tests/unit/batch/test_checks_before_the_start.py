"""A BATCH job asks its sinks and sources before anything runs, as a STREAMING job does."""

from __future__ import annotations

import pytest

from tidegate.common.errors import ConfigurationError, JobGraphError
from tidegate.connectors.discard import DiscardingSink
from tidegate.contracts.driver_side import DriverSide
from tidegate.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from tidegate.spark.batch import runtime


class Guarded(DiscardingSink, DriverSide):
    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self._name = name

    @property
    def exclusive_name(self) -> str | None:
        return self._name

    def check_start(self, num_slots: int) -> None:
        if self._name is None:
            raise ConfigurationError(f"no job of {num_slots} slots may write here")

    def job_started(self, client: object) -> None: ...

    def job_refused(self) -> None: ...


@pytest.mark.parametrize(
    ("sinks", "error", "text"),
    [
        ([Guarded()], ConfigurationError, "no job of 2 slots may write here"),
        ([Guarded("the name 'x'"), Guarded("the name 'x'")], JobGraphError, "the name 'x'; give each its own"),
    ],
    ids=["refused", "not alone"],
)
def test_a_sink_may_refuse_the_job(
    sinks: list[Guarded], error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "obtain_session", lambda *_, **__: pytest.fail("it was started"))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH).set_parallelism(2)
    for sink in sinks:
        env.from_collection([1]).sink_to(sink)
    with pytest.raises(error, match=text):
        env.execute("refused")
