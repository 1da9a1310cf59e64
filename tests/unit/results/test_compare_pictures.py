"""The pictures of a comparison can be drawn of anything, also of nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.results.compare_plots import draw_attribution, draw_distributions
from simulator.results.plots import save

EDGES = np.geomspace(1, 1000, 31)
PARTS = {"requests": 9, "e2e_ms": 30.0, "queue_ms": 10.0, "decode_ms": 20.0, "preempted_ms": 0.0}


@pytest.mark.parametrize("counts", [np.zeros(30, int), np.eye(30, dtype=int)[7], np.arange(30)])
def test_distributions_can_be_drawn(counts: np.ndarray, tmp_path: Path) -> None:
    designs = {f"design {number}": counts for number in range(9)}  # more than there are colours
    save(draw_distributions(EDGES, designs, designs, "title"), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_the_share_above_a_value_is_that_of_the_tokens() -> None:
    """Of 4 tokens in bins 3, 3, 9 and 20, half lie above the end of bin 3 and none above that of bin 20."""
    counts = np.zeros(30, int)
    counts[[3, 9, 20]] = 2, 1, 1
    figure = draw_distributions(EDGES, {"only": counts}, {"only": counts}, "")
    left, right = figure.axes
    below, above = (axes.lines[0].get_ydata() for axes in (left, right))
    assert below[3] == 0.5
    assert above[4] == 0.5
    assert above[20] == 0.25
    assert np.isnan(above[21])


def test_tokens_without_a_gap_count_and_take_no_room() -> None:
    """The first bin holds the gaps of 0 within an event: the line begins with the share of the others."""
    counts = np.zeros(30, int)
    counts[[0, 12, 20]] = 3, 1, 1
    right = draw_distributions(EDGES, {"only": counts}, {"only": counts}, "").axes[1]
    low, high = right.get_xlim()
    assert (low, high) == (EDGES[12], EDGES[21])
    latencies, above = right.lines[0].get_data()
    assert np.asarray(above)[np.asarray(latencies) == low] == pytest.approx(0.4)


@pytest.mark.parametrize("attribution", [{}, {"none": {}}, {"one": {"mean": PARTS}, "two": {"mean": PARTS}}])
def test_attributions_can_be_drawn(attribution: dict[str, dict[str, dict[str, float]]], tmp_path: Path) -> None:
    save(draw_attribution(attribution, "title"), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_bars_end_at_e2e_and_leave_out_what_nobody_has() -> None:
    figure = draw_attribution({"one": {"mean": PARTS}, "two": {"mean": PARTS}}, "")
    ends = [bar.get_x() + bar.get_width() for bar in figure.axes[0].patches]
    assert max(ends) == pytest.approx(0.03)  # s
    assert figure.axes[0].get_legend_handles_labels()[1] == ["queue", "decode"]
