"""Intervals that a run may have."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.results.dependence import Dependence, effective_size_of_replications, effective_size_of_run
from simulator.results.effective_size import EffectiveSize, intervals_section
from simulator.results.latency import latency_block
from simulator.results.metrics import summarise
from simulator.results.saturation import Load, dispersion
from simulator.results.statistics import Distribution
from tests.unit.results.synthetic import queue_record, scenario

NONE = np.zeros(0)
ONE_AT_A_TIME = "deployment.pools.main.scheduler.max_num_seqs=1"


def seen(share: float, requests: int = 10_000, variation: float = 1.0) -> Dependence:
    return Dependence(requests, 1.0, Load(share, 0.0, requests, 1.0, variation, NONE, NONE, NONE), False, False)


def test_an_independent_observation_takes_more_requests_the_nearer_saturation_is() -> None:
    found = [effective_size_of_run(seen(share)).observations for share in (0.3, 0.5, 0.7, 0.9)]
    assert found == sorted(found, reverse=True)
    up = 0.7 * (1 + 2 / math.sqrt(10_000))
    assert found[2] == pytest.approx(10_000 * (1 - up) ** 2 / 2)
    assert effective_size_of_run(seen(0.99)).observations == 0
    assert effective_size_of_run(seen(0.7, variation=4.0)).observations < found[2] / 4


def test_what_else_takes_trust_away() -> None:
    run = seen(0.5)
    assert effective_size_of_run(run._replace(unstable=True)) == EffectiveSize(0.0, "above_capacity")
    assert effective_size_of_run(run._replace(load=None)) == EffectiveSize(0.0, "load_unknown")
    assert effective_size_of_run(run._replace(present=251.0)).observations == 0
    assert effective_size_of_run(run._replace(speculates=True)).observations < effective_size_of_run(run).observations


def test_tails_need_more_than_means_and_few_observations_widen() -> None:
    effective_size = EffectiveSize(200.0)
    assert [effective_size.variance_factor(tail) is None for tail in (0.5, 0.1, 0.05, 0.01)] == [
        False,
        False,
        False,
        True,
    ]
    assert effective_size.variance_factor(0.1) == 1 + 30 / 20
    assert effective_size.of_share(0.3).variance_factor(0.1) is None
    values = np.random.default_rng(1).exponential(1, 5_000)
    plain = Distribution.of_series(values).mean_interval()
    block = latency_block(Distribution.of_series(values * 1e6), effective_size)
    assert plain is not None
    wide = np.diff(block["ci95"]["mean"])[0]
    assert wide == pytest.approx((plain[1] - plain[0]) * math.sqrt(2.5), rel=1e-6)
    assert block["ci95"]["p99"] is None
    assert block["ci95_reason"] == {"p99": "run_too_short"}


def test_bursts_count_as_variation() -> None:
    rng = np.random.default_rng(2)
    alternating = rng.exponential(np.repeat(np.tile([0.1, 1.9], 15), 333))
    assert dispersion(alternating) > 10 * dispersion(rng.permutation(alternating))


def test_replications_start_empty_so_that_each_must_be_long_enough() -> None:
    short, long = [seen(0.9, 500)] * 10, [seen(0.5, 2_000)] * 10
    assert effective_size_of_replications(short) == EffectiveSize(0.0, "runs_too_short")
    assert effective_size_of_replications(long).observations > 9 * effective_size_of_run(long[0]).observations
    assert effective_size_of_replications(long[:2]).reason == "few_runs"
    assert effective_size_of_replications([run._replace(load=None) for run in long]).observations == math.inf


def test_a_run_near_saturation_has_no_intervals_and_says_why() -> None:
    record = queue_record(np.random.default_rng(3), 2_000, 0.9)
    summary = summarise(record, scenario(ONE_AT_A_TIME))
    assert set(summary["latency"]["e2e_ms"]["ci95"].values()) == {None}
    assert set(summary["latency"]["e2e_ms"]["ci95_reason"].values()) == {"run_too_short"}
    assert summary["intervals"]["method"] == "none"
    assert "simulate more requests" in summary["intervals"]["reason"]
    calm = summarise(queue_record(np.random.default_rng(3), 2_000, 0.3), scenario(ONE_AT_A_TIME))
    assert calm["latency"]["e2e_ms"]["ci95"]["mean"] is not None
    assert calm["intervals"]["method"] == "batches"


def test_the_section_of_nothing_names_its_reason() -> None:
    assert intervals_section(EffectiveSize(0.0, "load_unknown"))["reason"].startswith("a single run cannot show")
    assert intervals_section(EffectiveSize(5.0))["independent_observations"] == 5
