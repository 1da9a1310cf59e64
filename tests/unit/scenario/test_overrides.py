"""Overrides that make a mapping one of another kind, as an extending file does."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.scenario import load_scenario, parse_scenario
from simulator.scenario.field_types import tagged_at
from simulator.scenario.lengths import Exponential, Geometric
from simulator.scenario.schedulers import SglangScheduler
from simulator.scenario.schema import LinearCost, Pool, Scenario
from simulator.scenario.traffic import Gamma, Workload

SCENARIO = """\
name: chat
model: llama-3.1-8b
workload:
  arrivals: {process: poisson, rate: 4}
  requests: 100
  prompt_tokens: 100
  output_tokens: {distribution: lognormal, mean: 5, cv: 1}
deployment:
  pools:
    main:
      gpu: h100-sxm
      scheduler: {version: vllm-0.33, max_num_seqs: 7}
      memory: {offload: {capacity: 1GiB, policy: reload}}
      cost_model: {host: none}
"""
POOL = "deployment.pools.main"


def pool(*overrides: str) -> Pool:
    return parse_scenario(SCENARIO, "chat.yaml", overrides).deployment.pools["main"]


def workload(*overrides: str) -> Workload:
    return parse_scenario(SCENARIO, "chat.yaml", overrides).workload


def test_a_scheduler_of_another_kind_takes_the_place_of_the_old_one() -> None:
    assert pool(f"{POOL}.scheduler.policy=sglang").scheduler == SglangScheduler()


@pytest.mark.parametrize("backwards", [False, True])
def test_what_other_overrides_set_stays(backwards: bool) -> None:
    both = [f"{POOL}.scheduler.policy=sglang", f"{POOL}.scheduler.max_num_seqs=9"]
    assert pool(*(reversed(both) if backwards else both)).scheduler == SglangScheduler(max_num_seqs=9)
    named = dict(each.split("=") for each in both) | {f"{POOL}.scheduler.max_num_seqs": 9}
    found = parse_scenario(SCENARIO, "chat.yaml", named).deployment.pools["main"].scheduler
    assert found == SglangScheduler(max_num_seqs=9)


def test_the_same_kind_keeps_its_keys() -> None:
    assert pool(f"{POOL}.scheduler.policy=vllm") == pool()
    twice = (f"{POOL}.scheduler.policy=sglang", f"{POOL}.scheduler.policy=sglang")
    assert pool(*twice).scheduler == SglangScheduler()


def test_every_choice_of_the_schema_does_so() -> None:
    assert pool(f"{POOL}.cost_model.kind=linear", f"{POOL}.cost_model.base=1ms").cost_model == LinearCost(base=10**6)
    arrivals = ("workload.arrivals.process=gamma", "workload.arrivals.rate=3", "workload.arrivals.cv=2")
    assert workload(*arrivals).arrivals == Gamma(3.0, cv=2.0)
    lengths = ("workload.output_tokens.distribution=exponential", "workload.output_tokens.mean=9")
    assert workload(*lengths).output_tokens == Exponential(mean=9.0)
    scalar = ("workload.prompt_tokens.mean=5", "workload.prompt_tokens.distribution=geometric")
    assert workload(*scalar).prompt_tokens == Geometric(mean=5.0)


def test_a_key_that_is_called_like_a_tag_is_none() -> None:
    offload = pool(f"{POOL}.memory.offload.policy=recompute").memory.offload
    assert offload is not None
    assert (offload.capacity, offload.policy) == (2**30, "recompute")


def test_what_is_then_missing_names_the_override() -> None:
    with pytest.raises(InputError, match=r"^--set workload\.output_tokens\.distribution=exponential: .*missing mean$"):
        workload("workload.output_tokens.distribution=exponential")


def test_extending_files_follow_the_schema_too(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SCENARIO)
    top = tmp_path / "top.yaml"
    top.write_text("extends: base.yaml\ndeployment: {pools: {main: {memory: {offload: {policy: recompute}}}}}\n")
    offload = load_scenario(top).deployment.pools["main"].memory.offload
    assert offload is not None
    assert (offload.capacity, offload.policy) == (2**30, "recompute")


def test_tags_by_path() -> None:
    for path, key in {
        "deployment.pools.x.scheduler": "policy",
        "deployment.pools.x.speculation": "method",
        "deployment.pools.x.speculation.acceptance": "law",
        "workload.classes.0.prompt_tokens": "distribution",
        "workload.prompt_tokens.parts.1.law": "distribution",
        "router": "policy",
    }.items():
        tag = tagged_at(Scenario, path.split("."))
        assert tag is not None
        assert tag.key == key, path
    for path in ("deployment.pools.x.memory.offload", "model", "nothing.at.all"):
        assert tagged_at(Scenario, path.split(".")) is None
