"""Speculation in the engine: the lazy batch against the explicit one, draws equal in all designs, and kept drafts."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from simulator.errors import InputError
from simulator.recordings.check import check_scheduler
from simulator.results.integrity import check
from simulator.results.record import RunRecord, segment_rows
from simulator.scenario import parse_scenario
from simulator.scheduling import needs_explicit
from simulator.study.prepare import prepare
from simulator.study.run import execute
from tests.helpers import PLACEHOLDER, request_table, scenario
from tests.helpers import run as run_table

LINEAR = {"base": "5ms", "per_token": "20us", "per_context_token": "10ns"}
PROPOSERS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": {"cumulative": [0.7, 0.5, 0.3]}},
    "ngram at times": {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "match_rate": 0.5,
        "acceptance": {"cumulative": [0.7, 0.5, 0.3, 0.2], "correlation": 0.4},
    },
    "eagle": {"method": "eagle", "num_speculative_tokens": 3, "pass_time": "1ms"},
    "draft model": {
        "method": "draft_model",
        "model": "llama-3.2-1b",
        "num_speculative_tokens": 2,
        "pass_time": "1ms",
        "acceptance": {"law": "iid", "alpha": 0.8},
    },
    "medusa": {
        "method": "medusa",
        "num_speculative_tokens": 9,
        "tree": [4, 3, 2],
        "pass_time": "1ms",
        "acceptance": {"cumulative": [0.8, 0.5, 0.2]},
    },
}
POOL = {"prompts": 30, "groups": 3, "shared_prefix_tokens": 64}
#: Scheduler settings and KV blocks: ample memory, preemptions, a small budget, blocks left free.
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "ample": ({}, 100_000),
    "preempting": ({"max_model_len": 2000}, 110),
    "small": ({"max_num_seqs": 20, "max_num_batched_tokens": 256, "max_model_len": 800}, 90),
    "watermark": ({"max_model_len": 2000, "watermark": 0.02, "scheduler_reserve_full_isl": False}, 110),
}


def run(speculation: dict[str, Any] | None, scheduler: dict[str, Any] | None = None, **keys: Any) -> RunRecord:
    """Return a run of 150 requests; `keys` may have the engine, KV blocks, the seed, prompt and output tokens."""
    workload = {
        "arrivals": {"process": "gamma", "rate": 60, "cv": 2},
        "requests": keys.get("requests", 150),
        "prompt_tokens": {"distribution": "lognormal", "mean": keys.get("prompt", 120), "cv": 1.0},
        "output_tokens": {"distribution": "geometric", "mean": 50},
        **keys.get("workload", {}),
    }
    settings = {"max_num_seqs": 64, "max_num_batched_tokens": 1024, "max_model_len": 8000} | (scheduler or {})
    asked = scenario(
        workload,
        LINEAR,
        scheduler=settings,
        memory={"kv_blocks": keys.get("kv_blocks", 100_000)},
        pool={} if speculation is None else {"speculation": speculation},
        run={"engine": keys.get("engine", "auto"), "checks": True, "horizon": keys.get("horizon")},
        seed=keys.get("seed", 0),
    )
    return execute(prepare(asked), steps=keys.get("steps")).record


def events(record: RunRecord) -> list[tuple[int, int, int]]:
    """Return (request, row of the step, tokens) of every event, in that order."""
    first, last = segment_rows(record.segments, record.steps)
    lengths = last - first + 1
    rows = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    requests = np.repeat(record.segments.request, lengths)
    return sorted(zip(requests.tolist(), rows.tolist(), record.event_tokens.tolist(), strict=True))


def assert_same(one: Any, other: Any) -> None:
    for field in fields(one):
        assert_array_equal(getattr(one, field.name), getattr(other, field.name), field.name)


def assert_lazy_equals_exact(proposer: str, scheduler: dict[str, Any], **keys: Any) -> RunRecord:
    lazy, exact = (run(PROPOSERS[proposer], scheduler, engine=engine, **keys) for engine in ("lazy", "explicit"))
    assert_same_runs(lazy, exact)
    return lazy


def assert_same_runs(lazy: RunRecord, exact: RunRecord) -> None:
    for name in ("requests", "steps", "preemptions", "segments", "drafts", "draft_positions"):
        assert_same(getattr(lazy, name), getattr(exact, name))
    assert events(lazy) == events(exact)
    check(lazy)


@pytest.mark.parametrize("prompt", [120, 2])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_lazy_equals_exact(proposer: str, settings: str, prompt: int) -> None:
    scheduler, kv_blocks = SETTINGS[settings]
    record = assert_lazy_equals_exact(proposer, scheduler, kv_blocks=kv_blocks, prompt=prompt, seed=len(settings))
    assert len(record.preemptions.request) or settings == "ample" or prompt == 2


@pytest.mark.parametrize("workload", [{}, {"max_tokens": 200}, {"prompt_pool": POOL}], ids=["", "unforeseen", "pool"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_lazy_equals_exact_ahead_and_with_a_cache(
    proposer: str, caching: bool, asynchronous: bool, workload: dict[str, Any]
) -> None:
    """Steps formed ahead, ends that are not foreseen, and prompts of which all but a token is cached, so that vLLM pads
    their first step with drafts."""
    scheduler = {"async_scheduling": asynchronous, "enable_prefix_caching": caching, "max_model_len": 5000}
    record = assert_lazy_equals_exact(proposer, scheduler, kv_blocks=80, workload=workload, requests=80, seed=3)
    assert len(record.preemptions.request)
    assert bool(record.requests.cached_tokens.any()) == (caching and "prompt_pool" in workload)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("proposer", ["eagle", "ngram"])
def test_lazy_equals_exact_without_look_ahead_hashing(proposer: str, asynchronous: bool) -> None:
    """The hits of EAGLE are a block shorter, and those of lookups as with it."""
    scheduler = {"version": "none", "enable_prefix_caching": True, "async_scheduling": asynchronous}
    keys: dict[str, Any] = {"kv_blocks": 80, "workload": {"prompt_pool": POOL}, "requests": 80, "seed": 3}
    before, after = (
        assert_lazy_equals_exact(proposer, scheduler | {"max_model_len": 5000, "lookahead_hashing": hashing}, **keys)
        for hashing in (False, True)
    )
    found = before.requests.cached_tokens.sum() / after.requests.cached_tokens.sum()
    assert 0 < found < 1 if proposer == "eagle" else found == 1


@pytest.mark.parametrize(("version", "hits"), [("vllm-0.10", 1104), ("vllm-0.33", 1120)])
@pytest.mark.parametrize("proposer", ["eagle", "mtp"])
def test_old_versions_give_up_the_last_block_that_matches(proposer: str, version: str, hits: int) -> None:
    """A prompt of 70 blocks and four tokens, again, and as the start of a longer one."""
    prompts = [1124, 1124, 1200]
    table = request_table([0, 10**10, 2 * 10**10], prompts, [4, 4, 4], prefix_id=[0] * 3, prefix_tokens=[1124] * 3)
    drafts = {**PROPOSERS["eagle"], "method": proposer, "acceptance": {"law": "iid", "alpha": 0.5}}
    pool = {"speculation": drafts}
    asked = scenario(PLACEHOLDER, LINEAR, scheduler={"version": version}, memory={"kv_blocks": 1000}, pool=pool)
    assert run_table(asked, table).record.requests.cached_tokens.tolist() == [0, hits, hits]


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_lazy_equals_exact_where_prompts_were_computed_elsewhere(
    proposer: str, asynchronous: bool, first_token: str
) -> None:
    """A request that joins a decode pool has no drafts in its first step there."""
    cost = {"kind": "linear", **LINEAR}
    prefill = {"gpu": "h100-sxm", "role": "prefill", "memory": {"kv_blocks": 2000}, "cost_model": cost}
    decode = {**prefill, "role": "decode", "memory": {"kv_blocks": 70}, "speculation": PROPOSERS[proposer]}
    prefill["scheduler"] = {"version": "none"}
    decode["scheduler"] = {"version": "none", "async_scheduling": asynchronous}
    records = []
    for engine in ("lazy", "explicit"):
        document = {
            "name": "apart",
            "model": "llama-3.1-8b",
            "workload": {
                "arrivals": {"process": "poisson", "rate": 30},
                "requests": 80,
                "prompt_tokens": {"distribution": "lognormal", "mean": 150, "cv": 0.6, "max": 400},
                "output_tokens": {"distribution": "geometric", "mean": 40, "max": 200},
            },
            "deployment": {
                "pools": {"prefill": prefill, "decode": decode},
                "handover": {"first_token": first_token},
            },
            "run": {"engine": engine, "checks": True},
        }
        records.append(execute(prepare(parse_scenario(json.dumps(document)))).record)
    lazy, exact = records
    assert_same_runs(lazy, exact)
    assert len(lazy.preemptions.request)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_horizon_cuts_both_at_the_same_token(asynchronous: bool) -> None:
    for horizon in range(900, 1000, 7):
        assert_lazy_equals_exact(
            "draft model",
            {"async_scheduling": asynchronous, "max_model_len": 5000},
            kv_blocks=60,
            horizon=f"{horizon}ms",
        )


def refusal(speculation: dict[str, Any], scheduler: dict[str, Any], **keys: Any) -> str:
    """Return the reason why the lazy batch is refused; "" if it is not."""
    try:
        run(speculation, scheduler, requests=20, engine="lazy", **keys)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_context_limit_cuts_drafts_which_is_left_to_the_exact_batch(proposer: str, asynchronous: bool) -> None:
    """Requests of 150 tokens: the closer the limit, the fewer drafts their last steps have."""
    workload = {"prompt_tokens": 100, "output_tokens": 50}
    drafts = PROPOSERS[proposer]["num_speculative_tokens"]
    enough = 2 * (drafts + 1) if asynchronous else drafts
    verified, exact = [], []
    for spare in range(enough + 1):
        scheduler = {"async_scheduling": asynchronous, "max_model_len": 150 + spare, "max_num_seqs": 16}
        auto, plain = (
            run(PROPOSERS[proposer], scheduler, requests=20, workload=workload, engine=engine)
            for engine in ("auto", "explicit")
        )
        assert_same(auto.draft_positions, plain.draft_positions)
        assert events(auto) == events(plain)
        check(auto)
        verified.append(int(auto.draft_positions.drafts.sum()))
        if "requests as long, and speculation" in refusal(PROPOSERS[proposer], scheduler, workload=workload):
            exact.append(spare)
    assert exact == list(range(enough))
    assert verified[0] < verified[-1]


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_token_is_in_an_event(proposer: str, asynchronous: bool) -> None:
    scheduler = {"async_scheduling": asynchronous, "enable_prefix_caching": asynchronous, "max_model_len": 2000}
    record = run(PROPOSERS[proposer], scheduler, kv_blocks=120)
    assert len(record.preemptions.request)
    tokens = np.zeros(len(record.requests.status), np.int64)
    for request, _, count in events(record):
        tokens[request] += count
    assert_array_equal(tokens, record.requests.output_tokens)
    assert record.event_tokens.max() == 1 + len(record.draft_positions.depth)


@pytest.mark.parametrize("proposer", ["eagle", "ngram", "medusa"])
def test_a_design_does_not_change_what_is_accepted(proposer: str) -> None:
    """With other memory and batches the same requests get their tokens in as many, equal events, but for those that
    follow a preemption (or, asynchronously, use a draw up before)."""
    ample = run(PROPOSERS[proposer])
    slow = run(PROPOSERS[proposer], {"max_num_seqs": 3})
    tokens = [[count for _, _, count in events(record)] for record in (ample, slow)]
    assert tokens[0] == tokens[1]
    assert ample.end_ns < slow.end_ns


def test_more_drafts_never_take_more_steps() -> None:
    """Draws are runs: what three drafts accept, four accept as well."""
    counts = [
        len(events(run({**PROPOSERS["eagle"], "num_speculative_tokens": k}, {"max_num_seqs": 1}, requests=40)))
        for k in (1, 2, 4)
    ]
    assert counts[0] > counts[1] > counts[2]


def test_positions_follow_the_law() -> None:
    record = run(PROPOSERS["ngram"], requests=2000)
    positions = record.draft_positions
    verified = positions.sequences[0]
    assert_array_equal(positions.sequences, verified)
    for accepted, rate in zip(positions.accepted.tolist(), (0.7, 0.5, 0.3), strict=True):
        error = (rate * (1 - rate) / verified) ** 0.5
        assert abs(accepted / verified - rate) < 4 * error
    assert record.drafts.draft_tokens.sum() == positions.drafts.sum()


def test_correlated_requests_differ_more_but_accept_as_much_a_step() -> None:
    spread = {}
    for correlation in (0.0, 0.6):
        record = run(
            {**PROPOSERS["eagle"], "acceptance": {"law": "iid", "alpha": 0.6, "correlation": correlation}},
            {"max_num_seqs": 256, "max_num_batched_tokens": 2048},
            requests=1500,
        )
        steps, tokens = np.zeros(1500), np.zeros(1500)
        for request, _, count in events(record):
            steps[request] += 1
            tokens[request] += count
        long = tokens > 30
        spread[correlation] = np.std(tokens[long] / steps[long])
    assert spread[0.6] > 1.5 * spread[0.0]


def test_by_batch_size_and_off_above() -> None:
    sizes = {"rule": "by_batch_size", "sizes": [[1, 3], [4, 1], [8, 0]]}
    record = run({**PROPOSERS["eagle"], "length": sizes, "disable_by_batch_size": 20}, {"max_num_seqs": 16})
    steps = record.steps
    drafts = np.zeros(len(steps.end_ns), np.int64)
    drafts[record.drafts.step] = record.drafts.draft_tokens
    settled = steps.running[1:] == steps.running[:-1]
    for low, high, each in ((1, 4, 3), (4, 8, 1), (8, 17, 0)):
        chosen = np.flatnonzero(settled & (steps.running[1:] >= low) & (steps.running[1:] < high)) + 1
        chosen = chosen[(steps.prefill_tokens[chosen] == 0) & (steps.prefill_tokens[chosen - 1] == 0)]
        assert len(chosen) > 20
        assert_array_equal(drafts[chosen], each * steps.decodes[chosen])


def test_adaptive_finds_the_length_that_pays() -> None:
    """If a draft takes two fifths of a step, four drafts are best with alpha 0.9, and none with 0.05."""
    drafts = {}
    for alpha in (0.05, 0.9):
        speculation = {
            "method": "eagle",
            "num_speculative_tokens": 6,
            "pass_time": "2ms",
            "acceptance": {"law": "iid", "alpha": alpha},
            "length": {"rule": "adaptive", "period": 8},
        }
        record = run(speculation, {"max_num_seqs": 1}, requests=60)
        early = len(record.steps.end_ns) // 4
        late = record.drafts.step >= early
        drafts[alpha] = record.drafts.draft_tokens[late].sum() / (len(record.steps.end_ns) - early)
    assert drafts[0.05] < 0.3
    assert 3 < drafts[0.9] < 4.5


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("version", ["none", "vllm-0.33", "vllm-0.10"])
def test_recorded_runs_are_replayed(proposer: str, version: str, tmp_path: Path) -> None:
    run(PROPOSERS[proposer], {"version": version, "max_model_len": 2000}, kv_blocks=150, steps=tmp_path)
    verdict = check_scheduler(tmp_path / "0", checks=True)
    assert verdict.identical, verdict
    assert verdict.steps


def test_steps_of_varying_lengths_are_recorded_where_the_recording_says_how_many(tmp_path: Path) -> None:
    speculation = {**PROPOSERS["eagle"], "disable_by_batch_size": 4}
    run(speculation, {"max_model_len": 2000}, steps=tmp_path / "steps")
    assert check_scheduler(tmp_path / "steps" / "0", checks=True).identical
    with pytest.raises(InputError, match="one number of drafts for all steps"):
        run(speculation, {"async_scheduling": True, "max_model_len": 2000}, steps=tmp_path / "ahead")


def test_adaptive_stops_where_lookups_find_too_little() -> None:
    speculation = {**PROPOSERS["ngram at times"], "match_rate": 0.03, "lookup": "2ms", "length": {"rule": "adaptive"}}
    record = run(speculation, {"max_num_seqs": 8})
    proposing = np.count_nonzero(record.drafts.draft_ns)
    assert proposing < 0.2 * len(record.steps.end_ns)


def notes_of(speculation: dict[str, Any], scheduler: dict[str, Any] | None = None, model: str = "llama-3.1-8b") -> str:
    workload = {"arrivals": {"process": "poisson", "rate": 1}, "requests": 1, "prompt_tokens": 10, "output_tokens": 10}
    pool = {"speculation": speculation, "model": model}
    asked = scenario(workload, LINEAR, pool=pool, scheduler={"max_model_len": 1000} | (scheduler or {}))
    return "\n".join(f"{note.code}: {note.text}" for note in prepare(asked).resolved.notes)


def test_what_acceptance_was_measured_on_is_said_where_it_is_something_else() -> None:
    eagle3 = {"method": "eagle3", "num_speculative_tokens": 3, "pass_time": "1ms"}
    assert "acceptance" not in notes_of(eagle3)
    assert "eagle3 on llama-3.1-8b (MT-Bench, temperature 0)" in notes_of(eagle3, model="llama-3.1-70b")
    other = {"table": "ngram-llama-3.1-8b-cnn"}
    assert "not of eagle3 on llama-3.1-8b" in notes_of({**eagle3, "acceptance": other})
    assert "chains of drafts" in notes_of({**eagle3, "num_speculative_tokens": 6, "tree": [2, 2, 2]})
    assert "rule rejection, not typical" in notes_of({**eagle3, "verification": "typical"})
    assert "acceptance" not in notes_of({**eagle3, "acceptance": {"law": "iid", "alpha": 0.5}}, model="llama-3.1-70b")
    lookup = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": {"table": "ngram-qwen3-32b-first-10s"}}
    assert "their share of steps is not known" in notes_of(lookup, model="qwen3-32b")


@pytest.mark.parametrize("proposer", ["ngram", "medusa", "eagle"])
def test_drafts_that_are_not_made_on_the_gpu_are_not_scheduled_ahead(proposer: str) -> None:
    """vLLM turns asynchronous scheduling off with n-gram and Medusa, and refuses it where it was asked for."""
    speculation, ahead = PROPOSERS[proposer], proposer == "eagle"
    version = notes_of(speculation, {"version": "vllm-0.33"})
    assert ("synchronous_drafts: scheduling is synchronous" in version) != ahead
    assert ("vLLM refuses asynchronous scheduling" in notes_of(speculation, {"async_scheduling": True})) != ahead


def test_what_the_lazy_batch_cannot_follow_is_named() -> None:
    asked = scenario(
        {"arrivals": {"process": "poisson", "rate": 1}, "requests": 1, "prompt_tokens": 10, "output_tokens": 10},
        LINEAR,
        pool={"speculation": PROPOSERS["eagle"]},
        scheduler={"max_num_batched_tokens": 512, "max_model_len": 400},
        run={"engine": "lazy"},
    )
    assert "max_num_batched_tokens: 512 with 1024 tokens" in str(needs_explicit(asked.deployment.pools["main"]))
    with pytest.raises(InputError, match=r"lazy does not support scheduler\.max_num_batched_tokens"):
        prepare(asked)


@pytest.mark.parametrize(
    ("acceptance", "message"),
    [
        ({"table": "eagle3-llama"}, "acceptance.table: "),
        ({"cumulative": [0.5, 0.2]}, "cumulative has rates of 2 drafts in a row, but up to 3 are proposed"),
        ({"law": "by_class", "classes": {"chat": {"law": "iid", "alpha": 0.5}}}, "no class 'chat'"),
        ({"law": "replay", "file": "nowhere.jsonl"}, "nowhere.jsonl: no such file"),
    ],
)
def test_a_law_that_does_not_fit_is_refused(acceptance: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run({**PROPOSERS["eagle"], "acceptance": acceptance})


def test_recorded_counts_are_replayed(tmp_path: Path) -> None:
    counts = tmp_path / "counts.jsonl"
    counts.write_text('{"accepted": [2, 0]}\n{"accepted": [3]}\n')
    record = run(
        {**PROPOSERS["eagle"], "acceptance": {"law": "replay", "file": str(counts)}}, {"max_num_seqs": 1}, requests=2
    )
    for request, brings in ((0, [3, 1]), (1, [4])):
        told = [count for index, _, count in events(record) if index == request]
        expected = [1, *brings * len(told)][: len(told)]
        assert told[:-1] == expected[:-1]
