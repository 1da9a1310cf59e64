"""Results of runs that speculate, against a loop over every event that the engine recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.api.runs import run
from simulator.errors import InputError
from simulator.results.fragmentation import computed_tokens
from simulator.results.integrity import check
from simulator.results.record import RunRecord, segment_events
from simulator.results.segments import token_times
from simulator.results.store import write_results
from simulator.scenario import Scenario, parse_scenario
from simulator.scenario.plain_values import plain
from simulator.study.prepare import prepare
from simulator.study.run import Run
from tests import helpers

SCENARIO = """
name: drafts
model: llama-3.1-8b
workload:
  arrivals: {process: poisson, rate: 20}
  requests: 120
  prompt_tokens: {distribution: geometric, mean: 200}
  output_tokens: {distribution: geometric, mean: 40}
deployment:
  pools:
    main:
      gpu: h100-sxm
      scheduler: {version: none, max_num_seqs: 8, max_model_len: 8192}
      cost_model: {kind: linear, base: 10ms, per_prefill_token: 20us}
      speculation:
        {method: eagle, num_speculative_tokens: 3, pass_time: 1ms, acceptance: {law: iid, alpha: 0.8, correlation: 0.5}}
run: {checks: true}
"""
NGRAM = "{method: ngram, num_speculative_tokens: 2, acceptance: {law: iid, alpha: 0.5}}"
#: Further pools: in one, no decode advances while prompts are computed; the other has another proposer.
BESIDE = (
    "deployment.pools.pausing={gpu: h100-sxm, scheduler: {policy: prefill_first, max_num_seqs: 8, max_model_len: 8192},"
    " cost_model: {kind: linear, base: 10ms, per_prefill_token: 20us}}",
    "deployment.pools.other={gpu: h100-sxm, scheduler: {version: none, max_num_seqs: 8, max_model_len: 8192},"
    f" cost_model: {{kind: linear, base: 10ms, per_prefill_token: 20us}}, speculation: {NGRAM}}}",
)


def finished(*overrides: str) -> Run:
    return run(parse_scenario(SCENARIO, overrides=overrides))


def events_of(record: RunRecord, request: int) -> list[int]:
    """Return the tokens of each event of one request, in order."""
    counts = segment_events(record.segments, record.steps)
    ends = np.cumsum(counts)
    mine = np.flatnonzero(record.segments.request == request)
    return [int(tokens) for row in mine for tokens in record.event_tokens[ends[row] - counts[row] : ends[row]]]


@pytest.fixture(scope="module")
def plain_run() -> Run:
    return finished()


def test_events_bring_the_tokens_of_every_request(plain_run: Run) -> None:
    record = plain_run.record
    assert record.event_tokens.max() == 4
    for request in range(120):
        events = events_of(record, request)
        times = token_times(record, request)
        assert events[0] == 1  # the prompt's last step verifies nothing
        assert sum(events) == len(times) == record.requests.output_tokens[request]
        assert len(np.unique(times)) == len(events)


def test_the_section_is_that_of_the_events(plain_run: Run) -> None:
    """Accepted tokens that an answer's end cut off are the only difference."""
    record, section = plain_run.record, plain_run.summary["speculation"]
    events = [events_of(record, request) for request in range(120)]
    assert section["drafts"] == sum(len(each) - 1 for each in events)
    beside = sum(tokens - 1 for each in events for tokens in each)
    cut = section["accepted_tokens"] - beside
    assert 0 <= cut <= 3 * 120
    assert section["acceptance_length"] == pytest.approx(1 + (beside + cut) / section["drafts"])
    assert section["tokens_per_event"] == pytest.approx(sum(map(sum, events)) / sum(map(len, events)))
    low, high = section["ci95"]["acceptance_length"]
    assert 1 < low < section["acceptance_length"] < high < 4
    computed = int(record.steps.decodes.sum() + record.steps.prefill_tokens.sum() + record.drafts.draft_tokens.sum())
    wasted = int(record.drafts.draft_tokens.sum()) - section["accepted_tokens"]
    assert section["wasted_token_share"] == pytest.approx(wasted / computed)
    assert section["draft_tokens"] <= record.drafts.draft_tokens.sum()


def test_itl_is_by_token_and_by_event(plain_run: Run) -> None:
    record, latency = plain_run.record, plain_run.summary["latency"]
    times = [token_times(record, request) for request in range(120)]
    gaps = np.concatenate([np.diff(each) for each in times]) / 1e6
    assert latency["itl_ms"]["count"] == len(gaps)
    assert latency["itl_ms"]["mean"] == pytest.approx(gaps.mean())
    assert latency["itl_event_ms"]["count"] == np.count_nonzero(gaps)
    assert latency["itl_event_ms"]["p95"] == pytest.approx(np.quantile(gaps[gaps > 0], 0.95))
    several = [each for each in times if len(each) > 1]
    tpot = [(each[-1] - each[0]) / (len(each) - 1) / 1e6 for each in several]
    assert latency["tpot_ms"]["mean"] == pytest.approx(np.mean(tpot))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("deployment.pools.main.replicas=2",),
        ("run.horizon=1s",),
        (
            "deployment.pools.main.memory={kv_blocks: 60}",
            "workload.prompt_tokens={distribution: uniform, min: 50, max: 300}",
        ),
    ],
)
def test_what_is_in_memory_has_a_slot_and_drafts_have_more(overrides: tuple[str, ...]) -> None:
    one = finished(*overrides)
    record, kv = one.record, one.summary["kv"]
    assert (len(record.preemptions.request) > 0) == ("memory" in "".join(overrides))
    held = computed_tokens(record)
    assert (held > 0).all()
    assert (held <= 16 * record.steps.kv_used).all()
    some = finished(*overrides, "deployment.pools.main.speculation.num_speculative_tokens=8")
    assert some.summary["kv"]["wasted_share"] > kv["wasted_share"] > 0


@pytest.mark.parametrize("horizon", ["none", "1s"])
def test_pools_that_speculate_pause_and_do_neither_go_together(horizon: str) -> None:
    """The record obeys its laws (`run.checks`), also if a run ends with steps in flight."""
    overrides = BESIDE if horizon == "none" else (*BESIDE, f"run.horizon={horizon}")
    one = finished(*overrides)
    assert len(one.record.steps.paused)
    sections = one.summary["speculation"]["pools"]
    assert {name: section["method"] for name, section in sections.items()} == {"main": "eagle", "other": "ngram"}
    assert sections["main"]["acceptance_length"] > sections["other"]["acceptance_length"] > 1


def test_it_is_read_back_whole(tmp_path: Path, plain_run: Run) -> None:
    write_results(tmp_path / "out", plain_run.record, plain_run.summary, plain_run.scenario)
    results = simulator.load_results(tmp_path / "out")
    check(results.record)
    assert results.summary == plain_run.summary
    assert results.segments.groupby("request")["tokens"].sum().tolist() == results.requests["emitted_tokens"].tolist()
    assert results.steps["draft_tokens"].sum() == plain_run.record.drafts.draft_tokens.sum()
    assert results.steps["draft_ns"].sum() == plain_run.record.drafts.draft_ns.sum()


def test_drafts_are_those_of_the_requests_that_a_test_brings() -> None:
    """More requests than the scenario has, all of which speculate: 4 tokens behind the first in two steps."""
    drafts = {"method": "ngram", "num_speculative_tokens": 1, "acceptance": {"law": "iid", "alpha": 1.0}}
    brief = helpers.scenario(helpers.PLACEHOLDER, {"base": "10ms"}, pool={"speculation": drafts})
    found = helpers.run(brief, helpers.request_table([0] * 70, [8] * 70, [5] * 70)).summary["speculation"]
    assert (found["drafts"], found["acceptance_length"]) == (70 * 2, 2)


def given(scenario: Scenario) -> dict[str, Any]:
    """Return the acceptance of the one pool, as the scenario writes it."""
    speculation: dict[str, Any] = plain(scenario)["deployment"]["pools"]["main"]["speculation"]
    return dict(speculation["acceptance"])


def accepting(law: str, method: str = "eagle") -> Scenario:
    text = f"{{method: {method}, num_speculative_tokens: 1, pass_time: 1ms, acceptance: {law}}}"
    return parse_scenario(SCENARIO, overrides=(f"deployment.pools.main.speculation={text}",))


def test_a_run_names_the_table_that_it_took_by_default(tmp_path: Path) -> None:
    asked = accepting("{correlation: 0.2}")
    assert given(asked)["table"] is None
    one = run(asked)
    named = {"law": "table", "table": "eagle-llama-3.1-8b-mtbench", "correlation": 0.2}
    assert one.summary["speculation"]["acceptance"] == named
    assert {name: value for name, value in given(one.scenario).items() if value} == named
    assert one.scenario == prepare(one.scenario).scenario == prepare(asked).scenario
    write_results(tmp_path / "out", one.record, one.summary, one.scenario)
    again = parse_scenario(json.dumps(simulator.load_results(tmp_path / "out").scenario))
    assert again == one.scenario
    assert run(again).summary == one.summary


def test_tables_are_named_in_parts_and_only_where_nothing_is_given() -> None:
    parts = "parts: [{weight: 1, acceptance: {}}, {weight: 1, acceptance: {law: iid, alpha: 0.5}}]"
    mixed = given(prepare(accepting(f"{{law: mixture, {parts}}}")).scenario)["parts"]
    assert [part["acceptance"].get("table") for part in mixed] == ["eagle-llama-3.1-8b-mtbench", None]
    law = f"{{law: by_class, classes: {{default: {{law: mixture, {parts}}}}}}}"
    by_class = given(prepare(accepting(law)).scenario)
    assert by_class["classes"]["default"]["parts"] == mixed
    assert by_class["others"]["table"] == "eagle-llama-3.1-8b-mtbench"
    for kept in ("{table: eagle-llama-3-8b-mtbench}", "{conditional: [0.5]}", "{law: iid, alpha: 0.5}"):
        assert given(prepare(accepting(kept)).scenario) == given(accepting(kept))
    with pytest.raises(InputError, match=r"speculation\.acceptance: no shipped table is of medusa"):
        prepare(accepting("{}", "medusa"))
