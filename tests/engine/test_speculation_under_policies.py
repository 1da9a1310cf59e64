"""Speculation under schedulers other than vLLM's, on the explicit batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.results.integrity import check
from simulator.results.record import RunRecord, segment_events
from tests.engine.test_speculation import PROPOSERS, assert_same_runs, run

WHOLE = {"max_num_batched_tokens": 8000}
SYNCHRONOUS = {"async_scheduling": False, "enable_prefix_caching": False}
#: Settings by policy; each run has conservation checks.
POLICIES: dict[str, dict[str, Any]] = {
    "sglang": {"policy": "sglang", **SYNCHRONOUS},
    "sglang, overlap": {"policy": "sglang", "async_scheduling": True, "enable_prefix_caching": False},
    "sglang, radix cache": {"policy": "sglang", "async_scheduling": False},
    "sglang, overlap and radix cache": {"policy": "sglang", "async_scheduling": True},
    "tensorrt_llm": {"policy": "tensorrt_llm", "async_scheduling": False},
    "tensorrt_llm, overlap": {"policy": "tensorrt_llm", "async_scheduling": True},
    "max utilization": {
        "policy": "tensorrt_llm",
        "capacity_scheduler_policy": "MAX_UTILIZATION",
        "enable_chunked_context": True,
    },
    "prefill_first": {"policy": "prefill_first", **WHOLE},
    "orca": {"policy": "orca", **WHOLE},
    "sarathi": {"policy": "sarathi"},
    "sarathi, alternating": {"policy": "sarathi", "batching": "alternating"},
}


def accepted(record: RunRecord) -> dict[int, list[int]]:
    """Return the numbers of tokens that the steps of each request delivered, in order."""
    requests = np.repeat(record.segments.request, segment_events(record.segments, record.steps))
    tokens: dict[int, list[int]] = {}
    for request, count in zip(requests.tolist(), record.event_tokens.tolist(), strict=True):
        tokens.setdefault(request, []).append(count)
    return tokens


@pytest.mark.parametrize("proposer", ["ngram", "ngram at times", "medusa"])
@pytest.mark.parametrize(
    "policy",
    [
        {"policy": "sarathi"},
        {"policy": "tensorrt_llm", "async_scheduling": False},
        {"policy": "tensorrt_llm", "async_scheduling": True},
    ],
    ids=["sarathi", "tensorrt_llm", "tensorrt_llm, overlap"],
)
def test_equal_to_vllm_where_the_rules_are_the_same(proposer: str, policy: dict[str, Any]) -> None:
    """With ample memory and budgets all three compute every decode, and whole prompts beside them. These drafters have
    no KV, for which vLLM allocates more blocks."""
    ahead = policy.get("async_scheduling", False)
    vllm = run(PROPOSERS[proposer], WHOLE | SYNCHRONOUS | {"async_scheduling": ahead}, engine="explicit")
    other = run(PROPOSERS[proposer], WHOLE | policy)
    assert_same_runs(vllm, other)


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_does_not_change_what_is_accepted(policy: str, proposer: str) -> None:
    """Each request draws the same numbers of accepted drafts, so that it has the same steps, whenever they run."""
    plain = run(PROPOSERS[proposer], SYNCHRONOUS | WHOLE)
    other = run(PROPOSERS[proposer], WHOLE | POLICIES[policy])
    assert (other.requests.status == plain.requests.status).all()
    assert accepted(other) == accepted(plain)
    check(other)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_short_memory(policy: str, seed: int) -> None:
    """With few blocks drafts compete with prompts; only policies that set memory aside preempt nothing."""
    scheduler = {"max_model_len": 600} | POLICIES[policy]
    if scheduler["policy"] == "sglang":
        scheduler["schedule_conservativeness"] = 0.05  # so that it admits more than fits, and retracts
    outputs = {"output_tokens": {"distribution": "fixed", "value": 150}}
    record = run(PROPOSERS["eagle"], scheduler, kv_blocks=60, prompt=20, workload=outputs, seed=seed)
    check(record)
    aside = scheduler["policy"] == "orca" or policy in ("tensorrt_llm", "tensorrt_llm, overlap")
    assert bool(len(record.preemptions.request)) != aside


def test_a_small_budget_holds_decodes_whose_drafts_do_not_fit() -> None:
    """TensorRT-LLM schedules a request with all of its drafts, or not at all."""
    policy = {"policy": "tensorrt_llm", "enable_chunked_context": True, "async_scheduling": False}
    record = run(PROPOSERS["ngram"], policy | {"max_num_batched_tokens": 30, "max_num_seqs": 20}, prompt=8)
    assert record.steps.decodes.max() == 7  # of four tokens each
    assert record.steps.running.max() > 8
    check(record)


def test_prompts_get_the_budget_that_decodes_and_drafts_leave() -> None:
    record = run(PROPOSERS["ngram"], {"policy": "sarathi", "max_num_batched_tokens": 64})
    steps = record.steps
    mixed = (steps.prefill_tokens > 0) & (steps.decodes > 0)
    assert mixed.sum() > 50
    assert (steps.prefill_tokens + 4 * steps.decodes)[mixed].max() == 64


def test_no_request_is_evicted_where_blocks_to_completion_are_set_aside() -> None:
    """The blocks of drafts are set aside, too: requests of two blocks that end at the end of the second one."""
    policy = {"policy": "tensorrt_llm", "async_scheduling": True, "max_num_seqs": 256}
    workload = {
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": {"distribution": "fixed", "value": 12},
        "output_tokens": {"distribution": "fixed", "value": 20},
    }
    record = run(PROPOSERS["ngram"], policy, kv_blocks=100, workload=workload)
    assert record.steps.kv_used.max() > 80
    assert not len(record.preemptions.request)


def test_sglang_computes_no_prompts_beside_drafts() -> None:
    with pytest.raises(InputError, match="set enable_mixed_chunk to false"):
        run(PROPOSERS["eagle"], {"policy": "sglang", "enable_mixed_chunk": True})


def test_the_lazy_batch_is_refused() -> None:
    with pytest.raises(InputError, match=r"lazy does not support scheduler\.policy: sarathi with speculation"):
        run(PROPOSERS["eagle"], {"policy": "sarathi"}, engine="lazy")
