"""Valid and invalid settings of speculation in a scenario."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.scenario import Scenario, parse_scenario
from simulator.scenario.acceptance import IidAcceptance, TableAcceptance
from simulator.scenario.plain_values import plain
from simulator.scenario.speculation import Medusa

EAGLE: dict[str, Any] = {"method": "eagle3", "num_speculative_tokens": 3}
NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 3}


def read(speculation: Any, **pool: Any) -> Scenario:
    document = {
        "name": "test",
        "model": "llama-3.1-8b",
        "workload": {
            "arrivals": {"process": "poisson", "rate": 1},
            "requests": 1,
            "prompt_tokens": 9,
            "output_tokens": 9,
        },
        "deployment": {"pools": {"main": {"gpu": "h100-sxm", "speculation": speculation, **pool}}},
    }
    return parse_scenario(json.dumps(document))


def proposer(speculation: Any, **pool: Any) -> Any:
    return read(speculation, **pool).deployment.pools["main"].speculation


def test_a_chain_and_a_tree() -> None:
    assert proposer(EAGLE).levels == (1, 1, 1)
    tree = proposer({"method": "medusa", "num_speculative_tokens": 9, "tree": [4, 3, 2]})
    assert isinstance(tree, Medusa)
    assert (tree.levels, tree.depth) == ((4, 3, 2), 3)


@pytest.mark.parametrize("speculation", [EAGLE, NGRAM, {**EAGLE, "acceptance": {"law": "iid", "alpha": 0.5}}])
def test_what_is_written_is_read_again(speculation: dict[str, Any]) -> None:
    scenario = read(speculation)
    assert parse_scenario(json.dumps(plain(scenario))) == scenario


def test_acceptance_may_be_the_name_of_a_table() -> None:
    assert proposer({**EAGLE, "acceptance": "some-table"}).acceptance == TableAcceptance("some-table")
    assert proposer({**EAGLE, "acceptance": {"law": "iid", "alpha": 1}}).acceptance == IidAcceptance(1.0)


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        ("eagle3", "expected a mapping with the key method"),
        ({"num_speculative_tokens": 3}, "needs the key method: draft_model, ngram, eagle"),
        ({**EAGLE, "method": "eagle4"}, r"'eagle4' is not known; did you mean"),
        ({"method": "eagle3"}, "missing num_speculative_tokens"),
        ({**EAGLE, "num_speculative_tokens": 0}, "must be at least 1"),
        ({**EAGLE, "k": 3}, "k: unknown key"),
        ({**EAGLE, "tree": [2, 2]}, "tree: has 4 drafts, not num_speculative_tokens"),
        ({**EAGLE, "tree": [2, 1], "length": {"rule": "adaptive"}}, "length: a tree is verified whole"),
        ({**EAGLE, "draft_vocab": 9, "pass_time": "1ms"}, "draft_vocab: has no effect beside pass_time"),
        ({**NGRAM, "pass_time": "1ms"}, "pass_time: there is no pass of a drafter"),
        (
            {**NGRAM, "match_rate": 0.5, "acceptance": {"law": "replay", "file": "x"}},
            "match_rate: has no effect on rec",
        ),
        ({**EAGLE, "length": {"rule": "by_batch_size", "sizes": []}}, "sizes: needs at least one pair"),
        (
            {**EAGLE, "length": {"rule": "by_batch_size", "sizes": [[8, 2], [4, 1]]}},
            "sizes: must rise, but 4 follows 8",
        ),
        ({**EAGLE, "length": {"rule": "by_batch_size", "sizes": [[1, 5]]}}, "length: asks for 5 drafts, more than"),
        ({**EAGLE, "length": {"rule": "adaptive", "min": 4}}, "length: asks for 4 drafts, more than"),
        ({**EAGLE, "acceptance": 0.7}, "acceptance.table: expected text"),
        ({**EAGLE, "acceptance": {"cumulative": [0.5, 0.6]}}, "cumulative: must not rise, but 0.6 follows 0.5"),
        (
            {**EAGLE, "acceptance": {"cumulative": [0.5], "table": "x"}},
            "cumulative: cannot be given together with table",
        ),
        ({**EAGLE, "acceptance": {"law": "mixture", "parts": []}}, "parts: needs at least one"),
        ({**EAGLE, "acceptance": {"law": "by_class", "classes": {}}}, "classes: needs at least one"),
        ({**EAGLE, "verification": {"target": [1.0], "draft": [1.0]}}, "target: rule rejection keeps any target"),
        (
            {**EAGLE, "verification": {"rule": "argmax", "target": [0.5, 0.5], "draft": [1.0]}},
            "draft: must have as many",
        ),
        (
            {**EAGLE, "verification": {"rule": "argmax", "target": [0.5], "draft": [0.5]}},
            "target: probabilities must add",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(speculation: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(speculation)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"scheduler": {"policy": "static"}}, "speculation: is not simulated with scheduler policy static"),
        ({"scheduler": {"policy": "sglang", "enable_mixed_chunk": True}}, "set enable_mixed_chunk to false"),
        ({"pipeline_parallel": 2}, "speculation: is not simulated with a pipeline"),
        ({"cost_model": {"kind": "linear", "base": "1ms"}}, "a linear cost model has no time of a drafter"),
        (
            {"scheduler": {"max_num_batched_tokens": 3}},
            "max_num_batched_tokens: 3 tokens are too few for one sequence with its drafts; set at least 4",
        ),
    ],
)
def test_where_nothing_can_speculate(pool: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(EAGLE, **pool)
