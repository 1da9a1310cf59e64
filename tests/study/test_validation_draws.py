"""Numbers of draws of measured rows, none of which is simulated twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cost_models import HostModel
from simulator.errors import InputError
from simulator.validation import draws
from simulator.validation.measured import read_rows
from simulator.validation.replay import Predicted, deployed
from simulator.validation.run import compare
from simulator.validation.setting import Row, Setting
from tests.study.test_validation_speculation import read, tpot


class Simulated:
    """In the place of a simulation: TPOT of 4 ms, or 8 without drafts, and `apart` more of it with each draw."""

    def __init__(self, apart: float) -> None:
        self.apart, self.seen = apart, Counter[tuple[Setting, int]]()

    def __call__(self, stages: tuple[Setting, ...], seed: int, host: HostModel | None) -> list[Predicted]:
        (setting,) = stages
        self.seen[setting, seed] += 1
        tpot_ms = (8.0 if setting.speculation is None else 4.0) * (1 + self.apart * seed)
        return [Predicted({"tpot_mean_ms": tpot_ms}, False, 1.0, 76.0, 207.0)]


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Return two rows with the same baseline, and the second one again."""
    return read(tmp_path, tpot(2, 3.5), tpot(3, 3.6), tpot(3, 3.7))


def test_what_rows_have_alike_is_simulated_once(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(0.0)
    monkeypatch.setattr(draws, "replay", simulated)
    found = compare(rows, seeds=5, jobs=1)
    assert len(simulated.seen) == 3 * 5  # two numbers of drafts and the baseline
    assert set(simulated.seen.values()) == {1}
    assert all(entry.predicted is not None and entry.predicted.metrics["tpot_speed_up"] == 2.0 for entry in found)


@pytest.mark.parametrize(("apart", "count"), [(0.009, 2), (0.011, 5)])
def test_draws_of_a_steady_row_that_agree_are_enough(
    rows: list[Row], monkeypatch: pytest.MonkeyPatch, apart: float, count: int
) -> None:
    simulated = Simulated(apart)
    monkeypatch.setattr(draws, "replay", simulated)
    (found,) = compare([replace(rows[0], steady=True)], seeds=5, jobs=1)
    assert sum(simulated.seen.values()) == 2 * count
    assert found.predicted is not None
    assert found.predicted.metrics["tpot_mean_ms"] == pytest.approx(4 * (1 + apart * (count - 1) / 2))


def test_rows_that_are_not_steady_are_drawn_as_often_as_asked(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(0.0)
    monkeypatch.setattr(draws, "replay", simulated)
    compare(rows[:1], seeds=5, jobs=1)
    assert sum(simulated.seen.values()) == 2 * 5


def test_a_run_that_is_refused_says_why(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(stages: tuple[Setting, ...], seed: int, host: HostModel | None) -> list[Predicted]:
        raise InputError("no room")

    monkeypatch.setattr(draws, "replay", refuse)
    (found,) = compare(rows[:1], seeds=5, jobs=1)
    assert (found.predicted, found.row.reason) == (None, "no room")


def test_a_server_is_resolved_once_for_all_loads(rows: list[Row]) -> None:
    setting = rows[0].setting
    assert setting is not None
    longer = replace(setting, load=replace(setting.load, requests=500))
    assert deployed(setting) is deployed(longer)
    assert deployed(setting) is not deployed(replace(setting, tensor_parallel=2))


def test_what_no_seed_changes_is_simulated_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Closed loops with equal lengths have the same results in every draw; open loops do not."""
    path = tmp_path / "measured.csv"
    header = "gpu,tp,model,concurrency,request_rate,n_requests,input_len_mean,output_len_mean,tpot_mean_ms,provenance"
    loop = "H100,1,llama-3.1-8b,4,,40,300,20,7,aic-auto-gap-analysis"
    path.write_text("\n".join([header, loop, loop.replace(",4,,", ",,4,")]) + "\n", encoding="utf-8")
    simulated = Simulated(0.1)
    monkeypatch.setattr(draws, "replay", simulated)
    closed, opened = compare(read_rows(path), seeds=5, jobs=1)
    assert sorted(seed for _, seed in simulated.seen) == [0, 0, 1, 2, 3, 4]
    assert closed.predicted is not None and opened.predicted is not None
    assert closed.predicted.metrics["tpot_mean_ms"] < opened.predicted.metrics["tpot_mean_ms"]
