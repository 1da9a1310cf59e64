"""Data and labels of pictures, for runs of every kind. Their look is not tested."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from simulator.errors import InputError
from simulator.results import plots
from simulator.results.columns import Status
from simulator.results.metrics import summarise
from simulator.results.pictures import write_pictures
from simulator.results.record import RunRecord
from simulator.results.store import check_target, load_results, write_results
from tests.unit.results.synthetic import MS, refused, replay, scenario


def run(replicas: int = 1) -> RunRecord:
    generator = np.random.default_rng(60)
    arrival = np.sort(generator.integers(0, 2_000 * MS, 100))
    return replay(arrival, generator.integers(1, 900, 100), generator.integers(1, 40, 100), replicas=replicas)


def figures(record: RunRecord) -> tuple[Figure, Figure]:
    summary, kept = summarise(record, scenario()), np.asarray(record.requests.status == Status.COMPLETED)
    return plots.latency_figure(record, summary, kept), plots.load_figure(record, summary)


def curves(figure: Figure, panel: int) -> dict[str, np.ndarray]:
    axes: Any = figure.axes[panel]
    return {patch.get_label(): patch.get_data().values for patch in axes.patches}


def test_the_curve_is_the_cumulative_distribution() -> None:
    record = run()
    ttft_ms = np.sort((record.requests.first_token_ns - record.requests.arrival_ns) / 1e6)
    latencies, shares = figures(record)[0].axes[0].lines[0].get_data()
    assert len(latencies) < 2_000
    exact = np.searchsorted(ttft_ms, latencies, "right") / len(ttft_ms)
    assert np.abs(np.asarray(shares) - exact).max() < 0.011  # values on the edge of a bin


def test_the_marks_are_the_percentiles_of_the_summary() -> None:
    record = run()
    blocks = summarise(record, scenario())["latency"]
    for axes, metric in zip(figures(record)[0].axes, ("ttft_ms", "itl_ms"), strict=True):
        marks = [line.get_xdata()[0] for line in axes.lines[1:]]
        assert marks == [blocks[metric][name] for name in ("p50", "p95", "p99")]


def test_tokens_without_a_gap_are_where_the_curve_begins() -> None:
    """A logarithmic axis has no place for the 0 between tokens of one event; the others use all of it."""
    record = replay([0], [10], [13], drafts=3, accepts=(2,), token_ns=0)
    axes = figures(record)[0].axes[1]
    latencies, shares = axes.lines[0].get_data()
    assert shares[0] == pytest.approx(8 / 12)
    assert shares[-1] == 1
    assert min(latencies) > 10
    assert "0 within an event" in axes.get_xlabel()
    assert "event" not in figures(run())[0].axes[1].get_xlabel()


@pytest.mark.parametrize("step_ns", [MS // 10, MS, 10 * MS])
@pytest.mark.parametrize("slots", [1, 2, 8])
def test_labels_do_not_touch_and_the_legend_hides_nothing(step_ns: int, slots: int) -> None:
    """From a narrow range of latencies to one of four decades."""
    generator = np.random.default_rng(61)
    arrival = np.sort(generator.integers(0, 1_000 * MS, 200))
    record = replay(
        arrival, generator.integers(1, 900, 200), generator.integers(1, 99, 200), slots=slots, step_ns=step_ns
    )
    figure = figures(record)[0]
    figure.draw_without_rendering()
    for axes in figure.axes:
        low, high = axes.get_xlim()
        shown = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
        assert len(boxes) >= 2
        assert all(left.x1 + 3 < right.x0 for left, right in pairwise(boxes))
        legend = axes.get_legend()
        assert legend is not None
        assert legend.get_window_extent().y0 >= axes.get_window_extent().y1 - 1


def test_nothing_served_has_no_fractions_of_requests() -> None:
    latency, load = figures(refused())
    assert [tick for tick in load.axes[0].get_yticks() if tick % 1] == []
    assert load.axes[0].get_ylim()[1] >= 1
    assert all(len(axes.get_xticks()) == 0 for axes in latency.axes)


@pytest.mark.parametrize("replicas", [1, 3])
def test_load_over_time_adds_up(replicas: int) -> None:
    record = run(replicas)
    load = figures(record)[1]
    bin_s = (record.end_ns - record.start_ns) / 1e9 / len(curves(load, 0)["running"])
    engine = summarise(record, scenario())["engine"]
    assert curves(load, 0)["running"].mean() == pytest.approx(engine["mean_running"] * replicas, rel=1e-3)
    assert curves(load, 2)["arrivals"].sum() * bin_s == pytest.approx(100, rel=1e-3)
    assert curves(load, 2)["completions"].sum() * bin_s == pytest.approx(100, rel=1e-3)
    assert curves(load, 3)["output"].sum() * bin_s == pytest.approx(record.requests.emitted_tokens.sum(), rel=1e-3)
    assert curves(load, 3)["prefill"].sum() * bin_s == pytest.approx(record.requests.prompt_tokens.sum(), rel=1e-3)
    assert ("fullest replica" in curves(load, 1)) is (replicas > 1)


def apart() -> RunRecord:
    """Return three replicas: one of a pool, and two of another with a long name."""
    first, second = run(3).pools[0], "a pool with a very long name indeed"
    pools = (
        dataclasses.replace(first, name="prefill", role="prefill", replicas=1, cores=1, gpus=2),
        dataclasses.replace(first, name=second, role="decode", first=1, replicas=2, cores=2, gpus=400),
    )
    return dataclasses.replace(run(3), pools=pools)


def test_each_pool_has_panels_of_its_own() -> None:
    record = apart()
    load = figures(record)[1]
    assert len(load.axes) == 6
    sections = summarise(record, scenario())["pools"]
    for row, (pool, section) in enumerate(zip(record.pools, sections.values(), strict=True)):
        queue, memory = curves(load, 2 * row), curves(load, 2 * row + 1)
        assert queue["running"].mean() == pytest.approx(section["mean_running"] * pool.replicas, rel=1e-3)
        mean = memory["all replicas" if pool.replicas > 1 else "in use"].mean()
        assert mean == pytest.approx(section["kv"]["mean_use"] * 100, rel=1e-3)
        assert ("fullest replica" in memory) is (pool.replicas > 1)
    bin_s = (record.end_ns - record.start_ns) / 1e9 / len(curves(load, 4)["completions"])
    assert curves(load, 4)["completions"].sum() * bin_s == pytest.approx(100, rel=1e-3)
    assert curves(load, 5)["output"].sum() * bin_s == pytest.approx(record.requests.emitted_tokens.sum(), rel=1e-3)


def test_names_of_pools_do_not_touch_the_legends() -> None:
    load = figures(apart())[1]
    load.draw_without_rendering()
    for axes in load.axes[:-1]:
        legend = axes.get_legend()
        assert legend is not None
        assert axes._left_title.get_window_extent().x1 < legend.get_window_extent().x0
        assert axes.get_title("left")
    right = min(axes.yaxis.label.get_window_extent().x0 for axes in load.axes[1::2])
    assert max(axes.get_window_extent().x1 for axes in load.axes[0::2]) < right


def test_the_same_run_gives_the_same_directory(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_results(tmp_path / name, run(), summarise(run(), scenario()), scenario())
        write_pictures(tmp_path / name)
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert first == second
    assert first["load.png"] != first["latency.png"]


def test_figures_of_a_results_directory_are_those_of_the_run(tmp_path: Path) -> None:
    record, warm = run(), dataclasses.replace(scenario(), run=dataclasses.replace(scenario().run, warmup=700 * MS))
    summary = summarise(record, warm)
    assert 0 < summary["warmup"]["excluded_requests"] < 100
    write_results(tmp_path / "out", record, summary, warm)
    shares = load_results(tmp_path / "out").latency_figure().axes[0].lines[0].get_ydata()
    kept = np.asarray(record.requests.arrival_ns >= record.start_ns + 700 * MS)
    expected = plots.latency_figure(record, summary, kept).axes[0].lines[0].get_ydata()
    assert np.array_equal(shares, expected)
    assert not np.array_equal(shares, figures(record)[0].axes[0].lines[0].get_ydata())


def test_pictures_are_written_beside_the_columns_and_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_results(out, run(), summarise(run(), scenario()), scenario())
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert write_pictures(out) == [out / "latency.png", out / "load.png"]
    (out / "load.png").write_bytes(b"half a picture")
    write_pictures(out)
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    assert after.pop("latency.png").startswith(b"\x89PNG") and after.pop("load.png").startswith(b"\x89PNG")
    assert after == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    check_target(out)  # results with pictures may be replaced


def test_a_summary_without_what_figures_need_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_results(out, run(), summarise(run(), scenario()), scenario())
    summary = json.loads((out / "summary.json").read_text())
    for damage in ({"latency": {"ttft_ms": {}}}, {"resolved_scenario": {"run": {"warmup": "soon"}}}, {"latency": 3}):
        (out / "summary.json").write_text(json.dumps(summary | damage))
        with pytest.raises(InputError, match=r"out: damaged results directory: .*; simulate it again"):
            write_pictures(out)
    assert not list(out.glob("*.png"))


def test_a_full_disk_leaves_no_half_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(figure: Figure, path: Path) -> None:
        path.write_bytes(b"half a picture")
        raise OSError(28, "No space left on device")

    write_results(tmp_path / "out", run(), summarise(run(), scenario()), scenario())
    monkeypatch.setattr("simulator.results.pictures.save", full)
    with pytest.raises(InputError, match="out: figures could not be written: No space left on device"):
        write_pictures(tmp_path / "out")
    assert not list(tmp_path.rglob("*.png"))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(refused(), id="nothing served"),
        pytest.param(replay([0], [1], [1]), id="one token"),
        pytest.param(replay([0], [1], [2], step_ns=0, token_ns=0), id="no time passes"),
        pytest.param(replay([0, 1], [5, 5], [9, 9], replicas=3), id="an idle replica"),
    ],
)
def test_odd_runs_can_be_drawn(record: RunRecord, tmp_path: Path) -> None:
    for figure in figures(record):
        plots.save(figure, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_names_are_no_formulas(tmp_path: Path) -> None:
    plots.save(plots.new_figure(r"a $x_{$ b \\frac 模型", 3, 2), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0
