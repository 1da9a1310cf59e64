"""Hints about unknown keys: what other programs call a key, and where one belongs."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Annotated, Any

import pytest

from simulator.errors import InputError
from simulator.scenario import parse_scenario
from simulator.scenario.field_types import Tagged, fields_of, members
from simulator.scenario.keys import ALIASES, _index, _written
from simulator.scenario.schema import Scenario

SCENARIO = """\
name: chat
model: llama-3.1-8b
workload: {arrivals: {process: poisson, rate: 4}, requests: 100, prompt_tokens: 100, output_tokens: 10}
deployment: {pools: {main: {gpu: h100-sxm}}}
"""
POOL = "deployment.pools.main"


def hint(key: str, value: object = 1, text: str = SCENARIO) -> str:
    """Return the text of the error about an unknown key, after these words."""
    with pytest.raises(InputError) as caught:
        parse_scenario(text, "chat.yaml", [f"{key}={value}"])
    place, found, said = str(caught.value).partition(": unknown key; ")
    assert found, caught.value
    assert place.startswith(f"--set {key}={value}: {key.split('.')[0]}")
    return said


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (f"{POOL}.tp", "did you mean tensor_parallel?"),
        (f"{POOL}.pp", "did you mean pipeline_parallel?"),
        (f"{POOL}.dp", "did you mean data_parallel?"),
        (f"{POOL}.ep", "did you mean expert_parallel?"),
        (f"{POOL}.tensor-parallel-size", "did you mean tensor_parallel?"),
        (f"{POOL}.gpu_count", "did you mean replicas or tensor_parallel?"),
        (f"{POOL}.max_num_seqs", f"did you mean {POOL}.scheduler.max_num_seqs?"),
        (f"{POOL}.maxNumSeqs", f"did you mean {POOL}.scheduler.max_num_seqs?"),
        (f"{POOL}.max_num_seq", f"did you mean {POOL}.scheduler.max_num_seqs?"),
        (f"{POOL}.policy", f"did you mean {POOL}.scheduler.policy?"),
        (f"{POOL}.method", f"did you mean {POOL}.speculation.method?"),
        (f"{POOL}.kv_cache", f"did you mean {POOL}.model.kv_cache?"),
        (f"{POOL}.replcas", "did you mean replicas?"),
        (f"{POOL}.scheduler.chunked", "it is one of policy: sarathi"),
        (f"{POOL}.scheduler.schedule_policy", "it is one of policy: sglang"),
        ("max_num_seqs", f"did you mean {POOL}.scheduler.max_num_seqs?"),
        ("scheduler.max_num_seqs", f"did you mean {POOL}.scheduler?"),
        ("gpu", f"did you mean {POOL}.gpu?"),
        ("qps", "did you mean workload.arrivals.rate?"),
        ("workload.rate", "did you mean workload.arrivals.rate?"),
        ("workload.process", "did you mean workload.arrivals.process?"),
        ("horizon", "did you mean run.horizon?"),
        ("kv_cache", "did you mean model.kv_cache?"),
        ("model_name", "did you mean model.name?"),
        ("slo_e2e", "did you mean slo.e2e?"),
        ("slo_ttft_p95", "did you mean slo.ttft.p95?"),
        ("slo.ttft_p95", "did you mean slo.ttft.p95?"),
        ("slo.p99_itl", "did you mean slo.itl.p99?"),
        ("slo.tbt", "did you mean itl?"),
        ("bandwidth", "did you mean links.nvlink.bandwidth or links.network.bandwidth or links.pcie.bandwidth?"),
        ("colour", "known: cost, deployment, links, model, name, router, run, seed, slo, workload"),
    ],
)
def test_a_hint_names_the_right_key(key: str, expected: str) -> None:
    assert hint(key) == expected


def test_with_several_pools_none_is_guessed() -> None:
    text = SCENARIO.replace("h100-sxm}", "h100-sxm}, other: {gpu: l40s}")
    assert hint("max_num_seqs", text=text) == "did you mean deployment.pools.NAME.scheduler.max_num_seqs?"
    assert hint("deployment.pools.other.max_num_seqs", text=text) == (
        "did you mean deployment.pools.other.scheduler.max_num_seqs?"
    )


def test_the_place_of_the_key_is_named_in_a_file() -> None:
    with pytest.raises(InputError, match=r"^chat\.yaml:4:44: deployment\.pools\.main\.tp: unknown key; did you mean"):
        parse_scenario(SCENARIO.replace("gpu: h100-sxm", "gpu: h100-sxm, tp: 2"), "chat.yaml")


def test_aliases_lead_to_keys_and_hide_none() -> None:
    known = _index(Scenario)
    for word, names in ALIASES.items():
        assert set(names) <= set(known), word
        assert word not in {name for name in known if name != "concurrency"}, word


def test_every_key_of_the_schema_is_found_from_anywhere() -> None:
    """A key written at the top leads to each of its nearest places, which exist."""
    top = list(fields_of(Scenario))
    for name, places in _index(Scenario).items():
        if difflib.get_close_matches(name, top, 1, 0.85):
            continue  # a key of the top itself, or as good as one
        said = hint(name)
        assert any(_written(place.path, name).split(".NAME")[0] in said for place in places), (name, said)


def test_members_of_a_union() -> None:
    @dataclasses.dataclass
    class A:
        x: int

    @dataclasses.dataclass
    class B:
        y: int

    kind: Any = Annotated[A | B, Tagged("kind")] | None
    assert members(kind) == [(A, "kind"), (B, "kind")]
    assert members(int) == []


def test_a_new_entry_that_is_not_complete_is_perhaps_another_name() -> None:
    with pytest.raises(InputError, match=r"deployment\.pools\.mian: is new, and lacks gpu; did you mean main\?$"):
        parse_scenario(SCENARIO, "chat.yaml", ["deployment.pools.mian.replicas=2"])
    both = ["deployment.pools.second.replicas=2", "deployment.pools.second.gpu=l40s"]
    assert list(parse_scenario(SCENARIO, "chat.yaml", both).deployment.pools) == ["main", "second"]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("workload.requests=600", "workload.requests: describes .* with trace; workload.limit keeps"),
        ("workload.arrivals.rate=3", "workload.arrivals: describes .* with trace; workload.rate_scale: 2"),
        ("workload.duration=60s", "workload.duration: describes .* with trace; workload.time_window: "),
        ("workload.correlation=0.5", "workload.correlation: describes .* with trace$"),
    ],
)
def test_what_describes_a_synthetic_workload_points_to_what_a_trace_has(assignment: str, expected: str) -> None:
    text = "name: t\nmodel: llama-3.1-8b\nworkload: {trace: t.csv}\ndeployment: {pools: {main: {gpu: h100-sxm}}}\n"
    with pytest.raises(InputError, match=expected):
        parse_scenario(text, "t.yaml", [assignment])
    assert parse_scenario(text, "t.yaml", ["workload.correlation=0.0", "workload.requests=null"])
