"""The figures of a workload: by hand, and those of the public traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.scenario.traffic import Workload
from simulator.workload import load_requests
from simulator.workload.stats import TokenStatistics, trace_statistics
from simulator.workload.tables import make_table

NS = 10**9


def test_figures_by_hand() -> None:
    arrival_ns = np.array([0, 0, 1, 3, 4]) * NS
    table = make_table(arrival_ns, np.array([1, 2, 3, 4, 10]), np.array([5, 4, 3, 2, 1]))
    found = trace_statistics(table)
    assert (found.requests, found.duration_s, found.rate_per_s) == (5, 4.0, 1.0)
    assert found.gap_cv == pytest.approx(np.sqrt(0.5))  # gaps 0, 1, 2, 1
    assert (found.max_per_second, found.shared_arrivals) == (2, 0.4)
    assert found.output_tokens == TokenStatistics(mean=3.0, p50=3.0, p90=4.6, p99=4.96, max=5, total=15)
    assert found.length_correlation == pytest.approx(np.corrcoef([1, 2, 3, 4, 10], [5, 4, 3, 2, 1])[0, 1])


def test_figures_that_the_requests_do_not_determine() -> None:
    one = trace_statistics(make_table(np.array([7]), np.array([3]), np.array([4])))
    assert (one.requests, one.duration_s, one.max_per_second) == (1, 0.0, 1)
    assert (one.rate_per_s, one.gap_cv, one.length_correlation) == (None, None, None)
    at_once = trace_statistics(make_table(np.zeros(3, dtype=np.int64), np.array([1, 2, 3]), np.array([4, 4, 4])))
    assert (at_once.rate_per_s, at_once.gap_cv, at_once.length_correlation) == (None, None, None)
    assert at_once.shared_arrivals == 1.0


@pytest.mark.parametrize(
    ("name", "rows", "rate", "cv", "most", "duration", "prompt", "output"),
    [
        ("code", 8819, 2.57, 13.2, 67, 3436, (1469, 5188, 7436, 7437), (13, 55, 251, 1899)),
        ("conv", 19366, 5.53, 1.09, 16, 3502, (1020, 2735, 4142, 14050), (129, 424, 601, 1000)),
    ],
)
def test_public_traces(
    shared: Path,
    name: str,
    rows: int,
    rate: float,
    cv: float,
    most: int,
    duration: float,
    prompt: tuple[int, ...],
    output: tuple[int, ...],
) -> None:
    path = shared / "traces" / "azure" / f"AzureLLMInferenceTrace_{name}.csv"
    found = trace_statistics(load_requests(Workload(trace=str(path)), 0, Path))
    assert (found.requests, found.max_per_second) == (rows, most)
    assert found.rate_per_s == pytest.approx(rate, abs=0.005)
    assert found.gap_cv == pytest.approx(cv, rel=0.005)
    assert found.duration_s == pytest.approx(duration, abs=0.5)
    for tokens, exact in ((found.prompt_tokens, prompt), (found.output_tokens, output)):
        assert (tokens.p50, tokens.p90, tokens.p99, tokens.max) == pytest.approx(exact, abs=0.5)
