"""Resolved pools that speculate: cost, memory, GPUs, errors, notes, and their dry run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models import (
    BatchShape,
    LinearLaw,
    LookupProposer,
    MedusaProposer,
    ModelProposer,
    Roofline,
    SpeculativeCost,
    TimedProposer,
    kv_bytes_per_token,
    load_model,
)
from simulator.deployment import drafter_notes
from simulator.deployment.resolve import Resolved, resolve
from simulator.errors import InputError
from simulator.scenario import Scenario, parse_scenario
from simulator.study.dry_run import dry_run, print_dry_run
from simulator.study.prepare import prepare

LINEAR = {"kind": "linear", "base": "8ms"}
DRAFT = {"method": "draft_model", "model": "llama-3.1-8b"}


def scenario(speculation: dict[str, Any] | None, model: str = "llama-3.1-70b", **pool: Any) -> Scenario:
    served = {"gpu": "h100-sxm", "tensor_parallel": 4, "scheduler": {"version": "none", "max_model_len": 8192}} | pool
    if speculation is not None:
        served["speculation"] = {"num_speculative_tokens": 3, "acceptance": {"law": "iid", "alpha": 0.7}} | speculation
    work = {"arrivals": {"process": "all_at_once"}, "requests": 4, "prompt_tokens": 1000, "output_tokens": 100}
    document = {"name": "test", "model": model, "workload": work, "deployment": {"pools": {"main": served}}}
    return parse_scenario(json.dumps(document))


def resolved(speculation: dict[str, Any] | None, model: str = "llama-3.1-70b", **pool: Any) -> Resolved:
    return resolve(scenario(speculation, model, **pool))


def cost_of(speculation: dict[str, Any], model: str = "llama-3.1-70b", **pool: Any) -> SpeculativeCost:
    cost = resolved(speculation, model, **pool).services[0].cost
    assert isinstance(cost, SpeculativeCost)
    return cost


def codes(speculation: dict[str, Any], model: str = "llama-3.1-70b", **pool: Any) -> set[str]:
    return {note.code for note in resolved(speculation, model, **pool).notes}


def step(drafts: int, proposed: int) -> BatchShape:
    return BatchShape(8, 8 * (1000 + drafts), 0, (), 0, 8, 8 * drafts, proposed)


@pytest.mark.parametrize(
    ("speculation", "kind"),
    [
        (DRAFT, ModelProposer),
        ({"method": "eagle"}, ModelProposer),
        ({"method": "eagle3", "tree": [2, 1]}, ModelProposer),
        ({"method": "mtp"}, ModelProposer),
        ({"method": "medusa"}, MedusaProposer),
        ({"method": "ngram"}, LookupProposer),
        ({"method": "eagle", "pass_time": "1ms"}, TimedProposer),
    ],
)
def test_every_method_has_a_cost(speculation: dict[str, Any], kind: type) -> None:
    cost = cost_of(speculation)
    assert isinstance(cost.proposer, kind)
    assert isinstance(cost.target, Roofline)
    assert cost.step_cost(step(0, 0)) == cost.target.step_cost(step(0, 0))
    assert cost.step_cost(step(3, 2)).draft_ns > 0


def test_times_that_are_given_take_the_place_of_the_models() -> None:
    timed = cost_of({"method": "eagle", "pass_time": "1ms"}, cost_model=LINEAR)
    assert isinstance(timed.target, LinearLaw)
    assert timed.step_cost(step(3, 3)).draft_ns == 3_000_000
    assert cost_of({"method": "medusa", "pass_time": "1ms"}, cost_model=LINEAR).step_cost(step(3, 3)).draft_ns == 10**6
    assert cost_of({"method": "ngram", "lookup": "20us"}, cost_model=LINEAR).step_cost(step(3, 3)).draft_ns == 160_000
    both = cost_of({"method": "eagle", "pass_time": "4ms", "proposal": "overlapped"}, cost_model=LINEAR)
    assert both.step_cost(step(3, 3)).device_ns == 12_000_000


def test_terms_of_the_host_are_in_the_step() -> None:
    shape = step(3, 3)
    bare = {"kind": "roofline", "host": "none"}
    for method in ("eagle", "eagle3"):
        times = [cost_of({"method": method}, **pool).step_cost(shape).draft_ns for pool in ({}, {"cost_model": bare})]
        assert times[0] > times[1] + 399_000
    # Launches bound the head's passes on four GPUs, and those of EAGLE-3 with the target's whole vocabulary.
    eagle, eagle3 = (cost_of({"method": method}).step_cost(shape).draft_ns for method in ("eagle", "eagle3"))
    assert (eagle, eagle3 - eagle) == (399_000 + 3 * 704_000, 488_000 + 3 * 265_000)
    whole = {"method": "eagle3", "draft_vocab": load_model("llama-3.1-70b").vocab}
    assert cost_of(whole).step_cost(shape).draft_ns == eagle3


def test_a_drafter_takes_memory_beside_the_target_and_none_on_gpus_of_its_own() -> None:
    plain, beside, own = (resolved(each).pools[0] for each in (None, DRAFT, DRAFT | {"gpu": "h100-sxm"}))
    assert plain.capacity is not None
    assert beside.capacity is not None
    assert own.capacity == plain.capacity
    token = kv_bytes_per_token(load_model("llama-3.1-8b"), tensor_parallel=4)
    assert beside.capacity.block_bytes - plain.capacity.block_bytes == 16 * token
    assert beside.service.kv_token_bytes - plain.service.kv_token_bytes == 4 * token
    assert beside.capacity.kv_bytes + beside.capacity.draft_bytes == plain.capacity.kv_bytes
    assert [pool.service.gpus for pool in (plain, beside, own)] == [4, 4, 5]
    many = resolved(DRAFT | {"gpu": "h100-sxm", "tensor_parallel": 2}, replicas=3)
    assert many.services[0].gpus == 3 * (4 + 2)


def test_a_draft_model_may_be_on_some_of_the_targets_gpus() -> None:
    split, whole = (resolved(DRAFT | {"tensor_parallel": gpus}).pools[0].capacity for gpus in (4, 1))
    assert split is not None
    assert whole is not None
    assert whole.draft_token_bytes == 4 * split.draft_token_bytes
    assert whole.draft_bytes > 3.9 * split.draft_bytes


@pytest.mark.parametrize(
    ("speculation", "pool", "message"),
    [
        (DRAFT | {"model": "llama-3.1-9b"}, {}, r"pools\.main\.speculation\.model: unknown model .*llama-3\.1-8b"),
        (DRAFT | {"gpu": "h101"}, {}, r"pools\.main\.speculation\.gpu: unknown GPU"),
        (DRAFT | {"tensor_parallel": 8}, {}, r"speculation\.tensor_parallel: the target has 4 GPUs"),
        (DRAFT | {"tensor_parallel": 3}, {}, r"speculation: tensor_parallel 3 does not divide the 32 attention heads"),
        (DRAFT | {"gpu": "l40s"}, {"data_parallel": 2}, r"speculation\.gpu: .* set data_parallel to 1"),
        (DRAFT | {"model": "llama-3.1-70b", "gpu": "h100-sxm"}, {}, r"speculation: llama-3\.1-70b does not fit on 1 x"),
        (
            DRAFT | {"model": "qwen2.5-0.5b"},
            {"model": "qwen3-32b"},
            r"14 attention heads of qwen2\.5-0\.5b; tensor_parallel here",
        ),
        (
            DRAFT | {"model": "qwen2.5-0.5b", "tensor_parallel": 2},
            {},
            r"speculation\.model: qwen2\.5-0\.5b has a vocabulary of 151,936 entries and llama-3\.1-70b one of 128,256",
        ),
        (
            DRAFT | {"model": "llama-3.1-70b"},
            {"memory": {"gpu_memory_utilization": 0.8}},
            r"pools\.main: .* weights 32\.9 GiB, a drafter of 32\.9 GiB and",
        ),
    ],
)
def test_what_cannot_be_had_is_an_error_that_says_where(
    speculation: dict[str, Any], pool: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        resolved(speculation, **pool)


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        ({"method": "eagle"}, "hidden states that verification produces"),
        ({"method": "eagle3", "tree": [2, 1]}, "hidden states"),
        ({"method": "mtp"}, "hidden states"),
        ({"method": "medusa"}, "hidden states"),
        ({"method": "ngram"}, "needs the tokens that verification accepts"),
        (DRAFT, "share its bandwidth"),
    ],
)
def test_what_needs_the_target_s_result_or_its_gpus_cannot_overlap(speculation: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"proposal: cannot be overlapped: .*{message}"):
        scenario(speculation | {"proposal": "overlapped"})


def test_a_draft_model_on_gpus_of_its_own_overlaps_and_is_no_faster_than_either() -> None:
    shape, apart = step(3, 3), DRAFT | {"gpu": "h100-sxm"}
    serial, overlapped = (cost_of(apart | {"proposal": how}) for how in ("serial", "overlapped"))
    verifying, making = serial.target.step_cost(shape).device_ns, serial.proposer.draft_ns(shape)
    assert serial.step_cost(shape).device_ns == verifying + making + 399_000
    assert overlapped.step_cost(shape).device_ns == max(verifying, making) + 399_000
    assert max(verifying, making) >= overlapped.bound_ns(shape) > 0
    measured = cost_of(DRAFT | {"proposal": "overlapped", "pass_time": "9ms"})
    assert measured.step_cost(shape).device_ns == 27_399_000


def test_notes_say_what_the_times_rest_on() -> None:
    assert codes({"method": "eagle"}) == codes({"method": "ngram"}) == set()
    for others in ({"method": "mtp"}, {"method": "medusa"}, {"method": "eagle", "tree": [2, 1]}):
        assert "drafting_not_measured" in codes(others)
    assert codes({"method": "medusa", "pass_time": "1ms"}) == set()
    short = DRAFT | {"model": "llama-3-8b"}
    assert "draft_context" not in codes(short)
    assert "draft_context" in codes(short, scheduler={"max_model_len": 16_384})
    assert "outside_calibrated_range" in codes(DRAFT | {"weights": "int8"})
    assert "not_calibrated" not in codes(DRAFT | {"gpu": "l40s"})


def test_a_drafter_on_a_gpu_that_was_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(drafter_notes, "calibrated_path", lambda gpu: tmp_path / f"{gpu.name}.json")
    assert "not_calibrated" in codes(DRAFT | {"gpu": "l40s"})


def test_a_draft_model_is_measured_in_one_pair_one_gpu_and_one_sequence() -> None:
    one = {"tensor_parallel": 1, "scheduler": {"max_model_len": 8192, "max_num_seqs": 1}}
    pair = DRAFT | {"model": "qwen3-1.7b"}
    assert codes(pair, "qwen3-32b", **one) == set()
    assert "drafting_not_measured" not in codes(DRAFT | {"pass_time": "1ms"})
    for others in (
        codes(pair | {"model": "qwen3-0.6b"}, "qwen3-32b", **one),
        codes(pair, "qwen3-14b", **one),
        codes(pair | {"gpu": "h100-sxm"}, "qwen3-32b", **one),
        codes(pair, "qwen3-32b", **one | {"tensor_parallel": 2}),
        codes(pair, "qwen3-32b", **one | {"scheduler": {"version": "none", "max_model_len": 8192}}),
    ):
        assert "drafting_not_measured" in others


def test_mtp_without_a_layer_for_it_is_noted() -> None:
    deepseek = {"gpu": "h200-sxm", "tensor_parallel": 8}
    assert "no_mtp_layer" not in codes({"method": "mtp"}, "deepseek-v3", **deepseek)
    assert "no_mtp_layer" not in codes({"method": "mtp"}, "glm-4.5-air")
    assert "no_mtp_layer" in codes({"method": "mtp"})
    assert "no_mtp_layer" not in codes({"method": "eagle"})


def test_a_draft_model_that_is_no_smaller_is_noted() -> None:
    fp8 = {"model": "llama-3.1-70b", "weights": "fp8"}
    assert "draft_not_smaller" in codes(DRAFT | fp8)
    assert "draft_not_smaller" in codes(DRAFT | fp8, "llama-3.1-8b")
    assert "draft_not_smaller" not in codes(DRAFT)


def test_kv_is_counted_on_the_gpus_that_the_drafter_is_on() -> None:
    plain, beside, one = (resolved(each).services[0] for each in (None, DRAFT, DRAFT | {"tensor_parallel": 1}))
    token = kv_bytes_per_token(load_model("llama-3.1-8b"))
    assert beside.kv_token_bytes - plain.kv_token_bytes == one.kv_token_bytes - plain.kv_token_bytes == token


def test_a_draft_model_on_gpus_of_its_own_limits_the_blocks_to_what_they_hold() -> None:
    small = DRAFT | {"gpu": "l40s"}
    plain, limited, roomy = (resolved(each) for each in (None, small, DRAFT | {"gpu": "h200-sxm"}))
    (own,) = {pool.service.kv_blocks for pool in limited.pools}
    alone = resolved(None, "llama-3.1-8b", gpu="l40s", tensor_parallel=1)
    assert own == alone.services[0].kv_blocks < plain.services[0].kv_blocks
    assert {note.code for note in limited.notes} >= {"draft_kv_limits"}
    assert roomy.services[0].kv_blocks == plain.services[0].kv_blocks
    assert "draft_kv_limits" not in {note.code for note in roomy.notes}
    asked = resolved(small, memory={"kv_blocks": own + 1})
    assert asked.services[0].kv_blocks == own + 1
    (note,) = (note for note in asked.notes if note.code == "kv_blocks_exceed_memory")
    assert f"{own:,} blocks" in note.text
    assert "kv_blocks_exceed_memory" not in codes(small, memory={"kv_blocks": own})
    linear = resolved(small | {"pass_time": "1ms"}, cost_model=LINEAR, memory={"kv_blocks": 10**9})
    assert (linear.services[0].kv_blocks, linear.notes) == (10**9, ())


def test_the_dry_run_shows_the_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    plain, drafted = (dry_run(prepare(scenario(each)))["pools"]["main"] for each in (None, {"method": "eagle"}))
    memory = drafted["memory_per_gpu"]
    assert memory["drafter_bytes"] > 0
    assert memory["drafter_kv_bytes_per_token"] == 1024
    assert memory["kv_bytes_per_token"] == plain["memory_per_gpu"]["kv_bytes_per_token"] + 1024
    assert "drafter_bytes" not in plain["memory_per_gpu"]
    assert drafted["decode"] == plain["decode"]
    assert drafted["prefill"]["estimate_ms"] > plain["prefill"]["estimate_ms"]  # EAGLE's layer computes prompts, too
    speculating = drafted["speculating"]
    assert (speculating["drafts"], speculating["up_to"]) == (3, False)
    assert speculating["estimate_ms"] > plain["decode"]["estimate_ms"] + speculating["proposing_ms"]
    assert plain["decode"]["bound_ms"] < speculating["bound_ms"] < speculating["estimate_ms"]
    print_dry_run(dry_run(prepare(scenario({"method": "eagle"}))))
    printed = capsys.readouterr().out
    assert "drafter weights" in printed
    assert "81 KiB, 1 of them the drafter's" in printed
    assert "the same with 3 drafts each" in printed
    assert "ms of them for drafting" in printed


@pytest.mark.parametrize(
    ("rule", "drafts", "said"),
    [
        ({"length": {"rule": "by_batch_size", "sizes": [[2, 2], [64, 1]]}}, 1, "the same with 1 draft each"),
        ({"disable_by_batch_size": 64}, 0, "no drafts at this batch size"),
        ({"disable_by_batch_size": 257}, 3, "the same with 3 drafts each"),
        ({"length": {"rule": "adaptive"}}, 3, "the same with up to 3 drafts each"),
        ({"length": {"rule": "adaptive"}, "disable_by_batch_size": 64}, 0, "no drafts at this batch size"),
        ({"method": "eagle3", "tree": [2, 1]}, 3, "the same with 3 drafts each"),
    ],
)
def test_the_dry_run_shows_as_many_drafts_as_the_rule_proposes_to_its_batch(
    rule: dict[str, Any], drafts: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = dry_run(prepare(scenario({"method": "eagle"} | rule)))
    pool = report["pools"]["main"]
    assert pool["decode"]["batch"] > 64
    assert pool["speculating"]["drafts"] == drafts
    if not drafts:
        assert pool["speculating"]["estimate_ms"] == pool["decode"]["estimate_ms"]
    print_dry_run(report)
    assert said in capsys.readouterr().out
