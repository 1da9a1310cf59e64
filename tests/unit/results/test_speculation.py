"""The summary of speculation, by hand and by a loop over every event."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.results.columns import DraftColumns, DraftPositions, Status
from simulator.results.fragmentation import computed_tokens
from simulator.results.metrics import summarise
from simulator.results.record import PoolFacts, RunRecord
from simulator.results.saturation import estimated_load
from simulator.results.speculation import speculation_section, tokens_per_event
from simulator.results.table import print_summary
from simulator.scenario import Scenario
from simulator.speculation.quality import quality_of
from tests.unit.results.synthetic import MS, always_up, replay, scenario

EAGLE = "deployment.pools.main.speculation={method: eagle, num_speculative_tokens: 3%s}"


def run(requests: int = 60, **loop: Any) -> RunRecord:
    draw = np.random.default_rng(80)
    return replay(
        np.sort(draw.integers(0, 2_000 * MS, requests)),
        draw.integers(1, 300, requests),
        draw.integers(1, 60, requests),
        drafts=3,
        accepts=(1, 3, 0, 0, 2),
        **loop,
    )


def section_of(record: RunRecord, *overrides: str) -> dict[str, Any]:
    found = speculation_section(record, scenario(EAGLE % "", *overrides))
    assert found is not None
    return found


def test_one_request_by_hand() -> None:
    """A prompt of 10 and 7 tokens: the first from the prefill, then events of 4, 1 and 1 of the last 1 + 2."""
    record = replay([0], [10], [7], drafts=3, accepts=(2, 3, 0), draft_ns=2 * MS, step_ns=8 * MS, token_ns=0)
    assert record.event_tokens.tolist() == [1, 4, 1, 1]
    section = section_of(record)
    counts = {name: section[name] for name in ("drafts", "draft_tokens", "accepted_tokens")}
    assert counts == {"drafts": 3, "draft_tokens": 9, "accepted_tokens": 5}
    assert section["acceptance_length"] == pytest.approx(1 + 5 / 3)
    assert section["draft_acceptance_rate"] == pytest.approx(5 / 9)
    assert [each["position"] for each in section["per_position"]] == [1, 2, 3]
    assert [each["cumulative"] for each in section["per_position"]] == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    assert [each["conditional"] for each in section["per_position"]] == pytest.approx([2 / 3, 1, 1 / 2])
    assert section["wasted_token_share"] == pytest.approx((9 - 5) / (10 + 3 + 9))
    assert section["draft_time_share"] == pytest.approx(2 / 10)
    assert section["tokens_per_event"] == pytest.approx(7 / 4)
    assert section["ci95"] == {"acceptance_length": None, "draft_acceptance_rate": None}


def test_slots_for_drafts_that_do_not_hold_are_wasted_by_hand() -> None:
    """The same request: 10 tokens are in memory after its prompt, then 14, 15 and 16, in 16 slots."""
    record = replay([0], [10], [7], drafts=3, accepts=(2, 3, 0), draft_ns=2 * MS, step_ns=8 * MS, token_ns=0)
    assert computed_tokens(record).tolist() == [10, 14, 15, 16]
    roomy = replace(record, steps=replace(record.steps, kv_used=np.array([1, 2, 2, 2])))
    found = summarise(roomy, scenario(EAGLE % ""))["kv"]["wasted_share"]
    assert found == pytest.approx(1 - (10 + 14 + 15 + 16) / (16 * 7))


def test_itl_by_token_and_by_event_by_hand() -> None:
    record = replay([0], [10], [7], drafts=3, accepts=(2, 3, 0), draft_ns=2 * MS, step_ns=8 * MS, token_ns=0)
    latency = summarise(record, scenario(EAGLE % ""))["latency"]
    assert (latency["itl_ms"]["count"], latency["itl_event_ms"]["count"]) == (6, 3)
    assert latency["itl_ms"]["mean"] == pytest.approx(30 / 6)
    assert latency["itl_event_ms"]["mean"] == latency["itl_event_ms"]["max"] == pytest.approx(10)
    assert latency["tpot_ms"]["mean"] == pytest.approx(30 / 6)


def test_gaps_by_event_stand_in_every_block_of_a_run_that_speculates_and_in_no_other() -> None:
    record = run(class_id=np.arange(60) % 2, class_names=("chat", "code"))
    summary = summarise(record, scenario(EAGLE % ""))
    groups = [summary["latency"], *summary["by_class"].values(), *summary["by_output_bucket"].values()]
    assert all(list(group)[1:3] == ["itl_ms", "itl_event_ms"] for group in groups if "itl_ms" in group)
    assert list(summary["by_class"]) == ["chat", "code"]
    plain = summarise(replay([0, MS], [10, 10], [9, 9]), scenario())
    assert "itl_event_ms" not in plain["latency"]
    assert "speculation" not in plain


def test_a_run_with_nothing_to_decode_has_no_rates() -> None:
    section = section_of(replay([0, MS], [10, 10], [1, 1], drafts=3, accepts=(1,)))
    assert section["drafts"] == section["accepted_tokens"] == 0
    assert not {"acceptance_length", "per_position", "ci95"} & set(section)
    assert section["wasted_token_share"] == 0


def test_a_position_that_nothing_reaches_has_no_rate_of_its_own() -> None:
    section = section_of(replay([0, MS], [10, 10], [9, 9], drafts=3, accepts=(1, 0)))
    assert [each["conditional"] for each in section["per_position"]] == [0.5, 0, None]


def positions_of(sequences: list[int], drafts: list[int], reached: list[int], accepted: list[int]) -> RunRecord:
    """Return a run with other outcomes of drafts."""
    depths = range(len(sequences))
    counts = (np.array(each) for each in ([0] * len(depths), depths, sequences, drafts, reached, accepted))
    return replace(run(), draft_positions=DraftPositions(*counts))


def test_the_conditional_rate_is_that_of_sequences_that_reached_the_position() -> None:
    """Ten sequences had one draft, of which all held; ten had two, of which the first held twice and the second once
    after it: 1 of 2, not (1 / 10) / (12 / 20)."""
    section = section_of(positions_of([20, 10, 0], [20, 10, 0], [20, 2, 0], [12, 1, 0]))
    assert [each["cumulative"] for each in section["per_position"]] == pytest.approx([0.6, 0.1, 0])
    assert [each["conditional"] for each in section["per_position"]] == [0.6, 0.5, None]


def test_a_tree_accepts_no_more_than_a_draft_of_each_level() -> None:
    """Of nine drafts on three levels, nearly all verifications accept three: there the interval ends."""
    section = section_of(positions_of([900] * 3, [3600, 2700, 1800], [900, 899, 898], [899, 898, 897]))
    assert section["drafts"] == 900
    assert section["draft_acceptance_rate"] == pytest.approx(2694 / 8100)
    assert section["ci95"]["acceptance_length"][1] == 4
    assert section["ci95"]["draft_acceptance_rate"][1] == pytest.approx(3 / 9)


def test_replicas_of_a_pool_count_together_and_pools_apart() -> None:
    record = run(replicas=3)
    both = speculation_section(record, scenario(EAGLE % ""))
    pools = (PoolFacts("main", "both", 0, 2, 2, 2, 10_000, 16), PoolFacts("other", "both", 2, 1, 1, 1, 10_000, 16))
    split = replace(record, pools=pools, replica_states=always_up(3))
    found = speculation_section(
        split, scenario(EAGLE % "", "deployment.pools.other={gpu: h100-sxm}", (EAGLE % "").replace("main", "other"))
    )
    assert both is not None
    assert found is not None
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert sum(one[name] for one in found["pools"].values()) == both[name]
    assert found["pools"]["main"]["drafts"] > found["pools"]["other"]["drafts"] > 0
    alone = speculation_section(split, scenario(EAGLE % "", "deployment.pools.other={gpu: h100-sxm}"))
    assert alone == found["pools"]["main"]


def test_the_interval_of_the_acceptance_length_is_that_of_requests() -> None:
    """Every request accepts all or nothing, so that requests are the observations; an interval from single steps would
    be four times too narrow."""
    base = replay(np.arange(200) * 1000 * MS, np.full(200, 10), np.full(200, 21))
    covered = 0
    for seed in range(50):
        low, high = section_of(_all_or_nothing(base, seed))["ci95"]["acceptance_length"]
        covered += low <= 2.5 <= high
    assert covered >= 43


def _all_or_nothing(base: RunRecord, seed: int) -> RunRecord:
    """200 requests of 21 events each, one after the other, of which half, at random, have 4 tokens."""
    lucky = np.random.default_rng(seed).integers(0, 2, 200)
    tokens = np.ones((200, 21), np.uint16)
    tokens[:, 1:] += (3 * lucky[:, None]).astype(np.uint16)
    sums = tokens.sum(axis=1).astype(np.int64)
    steps = np.arange(len(base.steps.end_ns))
    verified, held = np.full(3, 4000), np.full(3, 20 * int(lucky.sum()))
    return replace(
        base,
        requests=replace(base.requests, emitted_tokens=sums, output_tokens=sums),
        event_tokens=tokens.ravel(),
        drafts=DraftColumns(steps, np.full(len(steps), 3), np.zeros_like(steps)),
        draft_positions=DraftPositions(
            np.zeros(3, int), np.arange(3), verified, verified, np.append(verified[:1], held[:2]), held
        ),
    )


def test_tokens_per_event() -> None:
    record = run()
    assert tokens_per_event(record) == record.requests.emitted_tokens.sum() / len(record.event_tokens)
    assert tokens_per_event(replay([0], [5], [9])) == 1


# --- quality


def test_the_quality_is_that_of_the_rule() -> None:
    exact, approximate = section_of(run()), speculation_section(run(), argmax())
    assert approximate is not None
    assert (exact["quality"], exact["verification"], exact["total_variation"]) == ("exact", "rejection", 0)
    assert (approximate["quality"], approximate["verification"]) == ("approximate", "argmax")
    proposer = argmax().deployment.pools["main"].speculation
    assert proposer is not None
    quality = quality_of(proposer.verification)
    assert approximate["total_variation"] == pytest.approx(quality.total_variation)
    assert quality.total_variation > 0
    assert approximate["basis"] == quality.basis


def test_an_approximate_rule_is_a_warning() -> None:
    (told,) = [each for each in summarise(run(), argmax())["warnings"] if each["code"] == "approximate_output"]
    assert "pool main accepts drafts by the rule argmax, which changes the output distribution" in told["text"]
    exact = summarise(run(), scenario(EAGLE % ""))
    assert "approximate_output" not in {each["code"] for each in exact["warnings"]}


def test_an_approximate_rule_does_not_say_how_much_it_accepts() -> None:
    (told,) = [each for each in summarise(run(), argmax())["warnings"] if each["code"] == "approximate_output"]
    assert "The number of accepted drafts does not follow from it: it is the scenario's" in told["text"]


def argmax() -> Scenario:
    return scenario(EAGLE % ", verification: argmax")


# --- the table


def printed(record: RunRecord, of: Scenario) -> str:
    stream = io.StringIO()
    print_summary(summarise(record, of), stream)
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    return " ".join(stream.getvalue().split())


def test_the_table_says_what_was_drafted_accepted_and_wasted() -> None:
    text = printed(run(), scenario(EAGLE % ""))
    for words in ("eagle, 3 drafts", "of computed tokens wasted", "output exact", "acceptance length 2.2", "of drafts"):
        assert words in text
    assert "ITL by token" in text
    assert "ITL by event" in text
    assert "output approximate (argmax, total variation" in printed(run(), argmax())
    assert "ITL by" not in printed(replay([0, MS], [10, 10], [9, 9]), scenario())


@pytest.mark.parametrize(
    ("law", "given", "words"),
    [
        ("{law: iid, alpha: 0.7}", {"law": "iid", "alpha": 0.7, "correlation": 0.0}, "iid, alpha 0.7"),
        ("{table: t, correlation: 0.3}", {"law": "table", "table": "t", "correlation": 0.3}, "; table t"),
        (
            "{cumulative: [0.8, 0.5, 0.2]}",
            {"law": "table", "cumulative": (0.8, 0.5, 0.2), "correlation": 0.0},
            "rates of the scenario",
        ),
        ("{law: replay, file: a.jsonl}", {"law": "replay", "file": "a.jsonl"}, "recorded in a.jsonl"),
        (
            "{law: mixture, parts: [{weight: 2, acceptance: {table: t}}]}",
            {
                "law": "mixture",
                "parts": [{"weight": 2.0, "acceptance": {"law": "table", "table": "t", "correlation": 0.0}}],
            },
            "a mixture of laws",
        ),
        (
            "{law: by_class, classes: {chat: {law: iid, alpha: 0.5}}, others: {table: t}}",
            {
                "law": "by_class",
                "classes": {"chat": {"law": "iid", "alpha": 0.5, "correlation": 0.0}},
                "others": {"law": "table", "table": "t", "correlation": 0.0},
            },
            "by class",
        ),
    ],
)
def test_it_says_which_acceptance_was_given(law: str, given: dict[str, Any], words: str) -> None:
    of = scenario(EAGLE % f", acceptance: {law}")
    section = speculation_section(run(), of)
    assert section is not None
    assert json.dumps(section["acceptance"]) == json.dumps(given)
    assert words in printed(run(), of)


def test_the_estimated_load_counts_events_and_not_tokens() -> None:
    """A run that ends with half of each answer open, and whose steps all take the same time, has half of its steps to
    come: as many events again, not as many tokens."""
    whole = run(200, token_ns=0)
    cut = replace(
        whole.requests, status=np.full(200, Status.IN_FLIGHT), output_tokens=2 * whole.requests.emitted_tokens
    )
    loads = [estimated_load(record, 8, 8192) for record in (whole, replace(whole, requests=cut))]
    shares = [load.share for load in loads if load is not None]
    assert shares[1] / shares[0] == pytest.approx(2, rel=1e-6)


def test_drafts_are_part_of_the_budget_that_bounds_a_batch() -> None:
    """Steps of 11 ms, independent of their work, of at most 16 tokens: four decodes with three drafts each."""
    record = run(200, token_ns=0)
    load = estimated_load(record, 8, 16)
    assert load is not None
    tokens = int(record.steps.prefill_tokens.sum()) + 4 * int(record.steps.decodes.sum())
    span_ns = np.ptp(record.requests.arrival_ns) * 200 / 199
    assert load.share == pytest.approx(11 * MS * tokens / 16 / span_ns, rel=1e-6)


def test_there_is_no_estimated_load_where_full_batches_have_other_drafts() -> None:
    record = run(200)

    def engine(more: str) -> dict[str, Any]:
        return dict(summarise(record, scenario(EAGLE % more))["engine"])

    assert "estimated_load" in engine("")
    for more in (
        "disable_by_batch_size: 4",
        "length: {rule: adaptive}",
        "length: {rule: by_batch_size, sizes: [[2, 1]]}",
    ):
        assert "estimated_load" not in engine(f", {more}")
