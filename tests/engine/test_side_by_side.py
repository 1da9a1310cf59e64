"""Replicas that do not depend on each other, simulated in shares: the same record as in one process."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from simulator.engine.merging import merged
from simulator.engine.shares import assign, shares
from simulator.engine.simulation import simulate
from simulator.errors import InputError, StalledError
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.scenario import Scenario
from simulator.study.prepare import prepare
from simulator.study.run import execute
from tests.helpers import scenario

LINEAR = {"base": "5ms", "per_token": "20us", "per_context_token": "10ns"}
EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "pass_time": "1ms"}
WORKLOAD = {
    "arrivals": {"process": "gamma", "rate": 150, "cv": 2},
    "requests": 240,
    "prompt_tokens": {"distribution": "lognormal", "mean": 120, "cv": 1.0},
    "output_tokens": {"distribution": "geometric", "mean": 40},
    "prompt_pool": {"prompts": 30, "groups": 3, "shared_prefix_tokens": 64},
}
#: Further keys of the scenario by design.
DESIGNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "asynchronous with prefix caching": {"scheduler": {"async_scheduling": True, "enable_prefix_caching": True}},
    "priority": {"scheduler": {"scheduling_policy": "priority"}},
    "speculation": {"pool": {"speculation": EAGLE}},
    "speculation on the explicit batch": {"pool": {"speculation": EAGLE}, "run": {"engine": "explicit"}},
    "sglang": {"scheduler": {"policy": "sglang", "schedule_conservativeness": 0.05}},
    "data-parallel ranks": {"pool": {"data_parallel": 2}},
    "horizon": {"run": {"horizon": "900ms"}},
    "refusals": {"scheduler": {"max_model_len": 250}},
}


def asked(router: str = "round_robin", jobs: Any = 1, **keys: Any) -> Scenario:
    settings = {"max_num_batched_tokens": 256, "max_num_seqs": 24, "max_model_len": 1000} | keys.pop("scheduler", {})
    run = {"jobs": jobs} | keys.pop("run", {})
    workload = WORKLOAD | keys.pop("workload", {})
    rest = {"memory": {"kv_blocks": 75}, "replicas": 5} | keys
    return scenario(workload, LINEAR, scheduler=settings, run=run, router={"policy": router}, **rest)


def assert_same(one: Any, other: Any, name: str = "record") -> None:
    if is_dataclass(one) and not isinstance(one, type):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name), f"{name}.{field.name}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, name
        assert_array_equal(one, other, name)
    else:
        assert one == other, name


def in_shares(given: Scenario, jobs: int) -> RunRecord:
    """Return the record of a scenario whose shares are simulated one after the other."""
    prepared = prepare(given)
    services = prepared.resolved.services
    own = shares(prepared.scenario, assign(prepared.scenario, prepared.table, services), jobs)
    return merged([simulate(prepared.scenario, prepared.table, services, share=share) for share in own], own)


@pytest.mark.parametrize("router", ["round_robin", "random"])
@pytest.mark.parametrize("design", DESIGNS)
def test_shares_give_the_record_of_one_process(design: str, router: str) -> None:
    given = asked(router, **{name: dict(value) for name, value in DESIGNS[design].items()})
    whole = execute(prepare(given)).record
    assert len(set(whole.requests.replica.tolist()) - {-1}) >= 5
    for jobs in (1, 2, 3, 9):
        record = in_shares(given, jobs)
        assert_same(record, whole)
        check(record)
    if design in ("plain", "priority"):
        assert len(set(whole.requests.replica[whole.preemptions.request].tolist())) > 2


def test_processes_write_the_same_bytes(tmp_path: Path) -> None:
    for jobs in (1, 3):
        execute(prepare(asked(jobs=jobs, pool={"speculation": EAGLE}))).save(tmp_path / str(jobs))
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "3").iterdir())
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes(), name


def test_an_error_in_a_process_is_that_of_the_run() -> None:
    stuck = asked(jobs=2, scheduler={"pool_overflow": "wait"}, memory={"kv_blocks": 10})
    with pytest.raises(StalledError, match="waiting"):
        execute(prepare(stuck))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"router": "least_requests"}, "router.policy: least_requests chooses by the loads"),
        ({"workload": {"max_concurrency": 4}}, "workload.max_concurrency"),
        (
            {"memory": {"offload": {"capacity": "200GiB"}}, "scheduler": {"enable_prefix_caching": True}},
            "memory.offload",
        ),
    ],
)
def test_replicas_that_depend_on_each_other_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"run.jobs: 2 needs replicas that do not depend on each other; {message}"):
        prepare(asked(jobs=2, **keys))


def test_steps_are_recorded_in_one_process(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="steps are recorded in one process"):
        execute(prepare(asked(jobs=2)), steps=tmp_path)


def test_shares_keep_the_cores_of_a_replica_together() -> None:
    given = asked(pool={"data_parallel": 2}, replicas=3)
    prepared = prepare(given)
    core_of = assign(given, prepared.table, prepared.resolved.services)
    own = shares(given, core_of, 2)
    assert [sorted({*core_of[share.requests].tolist()} - {-1}) for share in own] == [[0, 1, 2, 3], [4, 5]]
    assert sorted(index for share in own for index in share.requests.tolist()) == list(range(240))
