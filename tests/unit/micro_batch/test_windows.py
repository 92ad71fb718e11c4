"""Windows and timers in micro-batches give exactly what the reference model gives, wherever the batches begin and end,
with and without a batch that is killed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.effort import EXAMPLES
from tests.unit.micro_batch.engine import Engine
from tests.unit.windows.kinds import COUNTED, EVENT_TIME, Kind
from tests.unit.windows.script_job import KEYS, Step, Wait, outcome_of, script_environment
from tests.unit.windows.test_against_the_model import compare, named, numbered, scripts, styles_of

pytestmark = pytest.mark.filterwarnings("ignore:.*never emits anything")
KINDS = EVENT_TIME + COUNTED


@pytest.mark.parametrize("kind", KINDS, ids=named)
@settings(
    max_examples=min(EXAMPLES, 200) or 5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=scripts.map(numbered),
    data=st.data(),
    parallelism=st.sampled_from([1, 2]),
    per_batch=st.integers(1, 12),
    kills=st.integers(0, 2),
)
def test_windows_give_what_the_model_gives(
    kind: Kind, steps: list[Step], data: st.DataObject, parallelism: int, per_batch: int, kills: int
) -> None:
    steps = [step for step in steps if not isinstance(step, Wait)]  # the clock is the machine's here
    style = data.draw(st.sampled_from(styles_of(kind)))
    windows: Any = partial(kind.windows, style=style)
    env = script_environment(steps, windows, KEYS, parallelism, with_late=True)
    engine = Engine(env, max_records=per_batch, kills=kills, seed=per_batch).run()
    outcome = outcome_of(engine.results, 0)
    compare(kind, steps, outcome.results, outcome.late)
