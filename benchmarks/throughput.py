"""Records per second, as ratios to a bare Python loop that does the same work per record."""

from __future__ import annotations

from benchmarks.report import Figure
from benchmarks.workloads import bare_chain, bare_w1, best_slope, run_chain, run_rolling, run_w1

AGGREGATIONS = ("sum", "min", "max", "min_by", "max_by")


def run(quick: bool) -> list[Figure]:
    small, large, repeats = (500_000, 2_000_000, 1) if quick else (1_000_000, 6_000_000, 3)
    run_w1(1000, 2)  # start Spark and its workers
    bare = best_slope(bare_w1, small, large, repeats)
    one = best_slope(lambda n: run_w1(n, 1), small, large, repeats)
    two = best_slope(lambda n: run_w1(n, 2), small, large, repeats)
    loop = best_slope(bare_chain, small, large, repeats)
    chain = best_slope(run_chain, 4 * small, 4 * large, repeats)
    reduce = best_slope(lambda n: run_rolling(n, "reduce"), small, large, repeats)
    rolling = {m: best_slope(lambda n, m=m: run_rolling(n, m), small, large, repeats) for m in AGGREGATIONS}  # type: ignore[misc]
    return [
        Figure("W1 bare loop", f"{bare / 1e6:.2f} M/s"),
        Figure("W1 parallelism 1", f"{one / 1e6:.2f} M/s"),
        Figure("W1 parallelism 1 / bare loop", f"{one / bare:.2f}", ">= 0.5", one / bare >= 0.5),
        Figure("W1 parallelism 2 / parallelism 1", f"{two / one:.2f}", ">= 1.35", two / one >= 1.35),
        Figure("map-filter chain / bare loop", f"{chain / loop:.2f}", ">= 0.6", chain / loop >= 0.6),
        *(
            Figure(f"{m} / reduce", f"{rate / reduce:.2f}", ">= 1.0", rate / reduce >= 1.0)
            for m, rate in rolling.items()
        ),
    ]
