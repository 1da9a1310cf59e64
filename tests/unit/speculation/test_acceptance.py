"""Runs by request and event, for any order of calls, and the laws of a scenario."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.scenario.acceptance import (
    ByClassAcceptance,
    IidAcceptance,
    MixtureAcceptance,
    MixturePart,
    ReplayAcceptance,
    TableAcceptance,
)
from simulator.scenario.speculation import Eagle3, Ngram, Proposer
from simulator.speculation import AcceptanceLaw, Origin, RequestClasses, build_acceptance
from simulator.speculation.runs import NOTHING

REQUESTS = 400


def law_of(acceptance: Any, proposer: type[Proposer] = Eagle3, **keys: Any) -> AcceptanceLaw:
    classes = np.arange(REQUESTS) % 2
    asked = proposer(num_speculative_tokens=keys.pop("drafts", 3), acceptance=acceptance, **keys)
    of_requests = RequestClasses(("chat", "code"), classes)
    return build_acceptance(asked, "llama-3.1-8b", 7, of_requests, Origin("speculation", Path))


def runs(law: AcceptanceLaw, events: int = 100) -> NDArray[np.int64]:
    """(requests, events)."""
    return np.array([list(islice(law.runs(index), events)) for index in range(REQUESTS)])


def rates(drawn: NDArray[np.int64], depth: int = 3) -> NDArray[np.float64]:
    return np.array([(drawn > at).mean() for at in range(depth)])


def within(found: NDArray[np.float64], expected: list[float], count: int) -> bool:
    error = np.sqrt(np.array(expected) * (1 - np.array(expected)) / count)
    return bool(np.all(np.abs(found - expected) < 4 * error))


def runs_until(law: AcceptanceLaw, index: int, first: int, tokens: int) -> list[int]:
    """The runs of a request that bring so many tokens, one at a time."""
    found: list[int] = []
    for run in islice(law.runs(index), first, None):
        if sum(max(each, 0) + 1 for each in found) >= tokens:
            return found
        found.append(run)
    return found


@pytest.mark.parametrize("match_rate", [1.0, 0.6])
@pytest.mark.parametrize("correlation", [0.0, 0.4])
@pytest.mark.parametrize("first", [0, 60, 64, 250])
def test_runs_are_the_same_one_by_one_and_of_many_requests(match_rate: float, correlation: float, first: int) -> None:
    law = law_of(IidAcceptance(0.7, correlation), Ngram, match_rate=match_rate)
    for requests in (range(64), range(320, 384), range(384, REQUESTS), range(70, 75), range(399, 400)):
        tokens = np.arange(len(requests)) * 12 % 700
        found, counts = law.until(requests, first, tokens)
        expected = [runs_until(law, index, first, int(some)) for index, some in zip(requests, tokens, strict=True)]
        assert counts.tolist() == [len(each) for each in expected]
        assert found.tolist() == [run for each in expected for run in each]
    assert runs(law)[0].tolist() != runs(law)[1].tolist()


def test_a_law_draws_its_rates() -> None:
    assert within(rates(runs(law_of(IidAcceptance(0.6)))), [0.6, 0.36, 0.216], 40_000)
    assert within(rates(runs(law_of(TableAcceptance(cumulative=(0.8, 0.5, 0.1))))), [0.8, 0.5, 0.1], 40_000)
    assert within(rates(runs(law_of(TableAcceptance(conditional=(0.8, 0.5, 0.5))))), [0.8, 0.4, 0.2], 40_000)
    assert runs(law_of(IidAcceptance(1.0))).min() == 3
    assert runs(law_of(IidAcceptance(0.0))).max() == 0


def test_the_default_is_the_table_of_method_and_model() -> None:
    named = law_of(TableAcceptance("eagle3-llama-3.1-8b-mtbench"))
    assert np.array_equal(runs(named), runs(law_of(TableAcceptance())))


def test_more_drafts_accept_at_least_as_many() -> None:
    few, many = (runs(law_of(IidAcceptance(0.8), drafts=drafts)) for drafts in (2, 5))
    assert np.array_equal(np.minimum(many, 2), few)


def test_a_mixture_has_the_shares_of_its_requests() -> None:
    parts = (MixturePart(3, IidAcceptance(1.0)), MixturePart(1, IidAcceptance(0.0)))
    drawn = runs(law_of(MixtureAcceptance(parts)))
    assert set(np.unique(drawn)) == {0, 3}
    assert np.all(drawn == drawn[:, :1])  # a request is of one kind for all its life
    assert within(np.array([(drawn[:, 0] == 3).mean()]), [0.75], REQUESTS)


def test_classes_have_laws_of_their_own() -> None:
    drawn = runs(law_of(ByClassAcceptance({"code": IidAcceptance(1.0)}, others=IidAcceptance(0.0))))
    assert np.all(drawn[0::2] == 0)
    assert np.all(drawn[1::2] == 3)


def test_lookups_that_find_nothing() -> None:
    drawn = runs(law_of(IidAcceptance(0.6), Ngram, match_rate=0.3))
    found = drawn != NOTHING
    assert within(np.array([found.mean()]), [0.3], 40_000)
    assert within(rates(drawn[found]), [0.6, 0.36, 0.216], int(found.sum()))


def test_a_table_of_steps_with_drafts_has_their_share() -> None:
    for match_rate, share in ((None, 0.5474), (0.2, 0.2)):
        drawn = runs(law_of(TableAcceptance("ngram-llama-3.1-8b-edit"), Ngram, match_rate=match_rate))
        assert within(np.array([(drawn != NOTHING).mean()]), [share], 40_000)
    assert NOTHING not in runs(law_of(TableAcceptance("ngram-llama-3.1-8b-cnn"), Ngram))


def test_correlated_steps_have_the_same_law_weighed_by_step() -> None:
    """Each request takes the steps that 2,000 tokens need, so that those that accept badly take more of them."""
    drawn = runs(law_of(IidAcceptance(0.7, correlation=0.7)), 2000)
    needed = [row[: int(np.searchsorted(np.cumsum(row + 1), 2000)) + 1] for row in drawn]
    own = np.array([row.mean() for row in needed])
    pooled = rates(np.concatenate(needed))
    for found, expected in zip(pooled, (0.7, 0.49, 0.343), strict=True):
        assert abs(found - expected) < 4 * own.std() / np.sqrt(REQUESTS)
    independent = np.array([row.mean() for row in runs(law_of(IidAcceptance(0.7)), 500)])
    assert own.std() > 5 * independent.std()


def test_recorded_counts_begin_again(tmp_path: Path) -> None:
    file = tmp_path / "counts.jsonl"
    file.write_text('{"accepted": [1, 0, 2]}\n\n{"accepted": [3]}\n')
    law = law_of(ReplayAcceptance(str(file)))
    assert list(islice(law.runs(2), 5)) == [1, 0, 2, 1, 0]
    found, counts = law.until([0, 1], 1, np.array([7, 9]))
    assert (found.tolist(), counts.tolist()) == ([0, 2, 1, 0, 3, 3, 3], [4, 3])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no lines"),
        ("nothing", "counts.jsonl:1:1: not valid JSON"),
        ('{"accepted": []}', "accepted: expected a count for each step, found none"),
        (
            '{"accepted": [1]}\n{"accepted": [-1]}',
            r"counts.jsonl:2: accepted\[0\]: expected an integer from 0 to 1000, found -1",
        ),
        ("[1, 2]", "expected a mapping, found a list"),
        ('{"accepted": ' + "[" * 100_000, "nested too deeply"),
        ('{"accepted": [1.5]}', "expected an integer"),
        ('{"accepted": 1}', "accepted: expected a list of numbers"),
    ],
)
def test_bad_counts_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "counts.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        law_of(ReplayAcceptance(str(file)))


@pytest.mark.parametrize(
    ("acceptance", "drafts", "message"),
    [
        (TableAcceptance(cumulative=(0.5,)), 2, "cumulative has rates of 1 drafts in a row, but up to 2"),
        (TableAcceptance(), 20, "eagle3-llama-3.1-8b-mtbench has rates of 7 drafts"),
        (TableAcceptance(), 8, r"give more rates \(or take a longer table: eagle3-humaneval-k8\)"),
        (TableAcceptance("nonsense"), 3, r"speculation\.acceptance\.table: "),
        (ByClassAcceptance({"chess": IidAcceptance(0.5)}), 3, "no class 'chess'; it has chat, code"),
    ],
)
def test_laws_that_do_not_fit_are_refused(acceptance: Any, drafts: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        law_of(acceptance, drafts=drafts)
