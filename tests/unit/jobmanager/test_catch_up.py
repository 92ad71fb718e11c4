"""How long a job is down, and how long it takes to be where it was before the failure."""

from __future__ import annotations

from tidegate.common.metric_values import (
    NUM_RECORDS_IN_RATE,
    PENDING_RECORDS,
    WATERMARK_LAG,
    GaugeValue,
    MeterValue,
    MetricReport,
)
from tidegate.jobmanager.catch_up import Lag, RecoveryWatch, lag_of


def pending(*waiting: float, rate: float = 100.0) -> tuple[MetricReport, ...]:
    """Of one source with a subtask for each."""
    gauges = [MetricReport(0, i, PENDING_RECORDS, GaugeValue(n)) for i, n in enumerate(waiting)]
    rates = [MetricReport(0, i, NUM_RECORDS_IN_RATE, MeterValue(0, rate)) for i in range(len(waiting))]
    return (*gauges, *rates, MetricReport(1, 0, NUM_RECORDS_IN_RATE, MeterValue(0, 1e9)))


def behind(*ms: float) -> tuple[MetricReport, ...]:
    return tuple(MetricReport(i, 0, WATERMARK_LAG, GaugeValue(n)) for i, n in enumerate(ms))


def test_what_waits_outside_counts_before_the_distance_to_the_clock() -> None:
    assert lag_of((*pending(5, 7), *behind(900))) == Lag(measure=PENDING_RECORDS, value=12, slack=200)
    assert lag_of(behind(300, 900)) == Lag(measure=WATERMARK_LAG, value=900, slack=1000)
    assert lag_of(()) is None
    assert lag_of((MetricReport(0, 0, PENDING_RECORDS, GaugeValue(None)),)) is None
    own = MetricReport(0, 0, PENDING_RECORDS, GaugeValue(3), "operator", ("Map", "0"))
    assert lag_of((own,)) is None  # a metric of a user's function


def test_it_has_caught_up_when_it_is_no_further_behind_than_before() -> None:
    watch = RecoveryWatch()
    assert watch.look(None, True, 0, pending(50), 1_000) == ()
    failed = (0, 2_000.0)
    (down,) = watch.look(failed, False, 0, (), 2_100)
    assert (down.failed_ms, down.running_ms) == (2_000, None)
    assert watch.look(failed, True, 0, pending(1), 2_200)[0].running_ms is None  # still the attempt that has failed
    (running,) = watch.look(failed, True, 1, (), 3_000)
    assert (running.running_ms, running.caught_up_ms) == (3_000, None)
    assert watch.look(failed, True, 1, pending(5_000), 4_000)[0].caught_up_ms is None
    (back,) = watch.look(failed, True, 1, pending(140), 9_000)  # 50 before, and 100 come in a second
    assert (back.caught_up_ms, back.catch_up_ms) == (9_000, 6_000)
    assert watch.look(failed, True, 1, pending(9_999), 10_000) == (back,)


def test_a_failure_while_it_catches_up_is_measured_against_the_time_before_the_first() -> None:
    watch = RecoveryWatch()
    watch.look(None, True, 0, pending(50), 1_000)
    watch.look((0, 2_000.0), True, 1, pending(90_000), 3_000)
    watch.look((1, 4_000.0), False, 1, (), 4_000)
    first, second = watch.look((1, 4_000.0), True, 2, pending(80_000), 5_000)
    assert second.lag_before == first.lag_before
    assert first.caught_up_ms is second.caught_up_ms is None
    first, second = watch.look((1, 4_000.0), True, 2, pending(60), 9_000)
    assert (first.caught_up_ms, second.caught_up_ms) == (9_000, 9_000)  # back from both, at one moment
    assert (first.catch_up_ms, second.catch_up_ms) == (6_000, 4_000)


def test_sources_that_cannot_tell_leave_it_open() -> None:
    watch = RecoveryWatch()
    watch.look(None, True, 0, (), 1_000)
    (found,) = watch.look((0, 2_000.0), True, 1, (), 3_000)
    assert (found.running_ms, found.lag_before, found.caught_up_ms) == (3_000, None, None)
    assert watch.look((0, 2_000.0), True, 1, behind(5), 9_000)[0].caught_up_ms is None
    (_, later) = watch.look((1, 10_000.0), False, 1, (), 10_000)
    assert later.lag_before == Lag(measure=WATERMARK_LAG, value=5, slack=1000)  # they could meanwhile


def test_the_first_and_the_latest_are_kept() -> None:
    watch = RecoveryWatch()
    for attempt in range(100):
        kept = watch.look((attempt, attempt * 10.0), True, attempt + 1, behind(1), attempt * 10.0 + 5)
    assert [r.attempt for r in kept] == [0, *range(81, 100)]
    assert all(r.running_ms is not None for r in kept)


def test_attempts_that_fail_again_before_they_run_were_down_until_one_ran() -> None:
    watch = RecoveryWatch()
    watch.look((0, 100.0), False, 0, (), 100)
    watch.look((1, 200.0), False, 1, (), 200)
    kept = watch.look((1, 200.0), True, 2, (), 900)
    assert [(r.attempt, r.running_ms) for r in kept] == [(0, 900), (1, 900)]
