"""The interface of `import simulator`: names, scenarios in any form, overrides, files, and errors of one line."""

from __future__ import annotations

import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.common.shipped import find_scenario
from tests.conftest import ROOT

MINE: dict[str, Any] = {
    "name": "mine",
    "model": "llama-3.1-8b",
    "workload": {
        "arrivals": {"process": "poisson", "rate": 5},
        "requests": 30,
        "prompt_tokens": {"distribution": "geometric", "mean": 200},
        "output_tokens": {"distribution": "geometric", "mean": 20},
    },
    "deployment": {
        "pools": {"main": {"gpu": "h100-sxm", "cost_model": {"kind": "linear", "base": "10ms", "per_token": "10us"}}}
    },
}
FAST = {"deployment.pools.main.cost_model.base": "5ms"}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_names_are_there_before_they_are_used() -> None:
    listed = python("import simulator; print(*dir(simulator))").split()
    assert set(simulator.__all__) <= set(listed)
    assert {"run", "compare", "load_results", "load_scenario", "InputError", "__version__"} <= set(listed)
    for name in simulator.__all__:
        assert getattr(simulator, name)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        simulator.runn  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, simulator; dir(simulator); simulator.InputError; print(*sys.modules)"
    loaded = set(python(code).split())
    assert not loaded & {"numpy", "pandas", "simpy", "matplotlib", "rich", "yaml", "joblib", "scipy"}


def test_running_imports_neither_pandas_nor_pictures() -> None:
    loaded = set(python("import sys, simulator; simulator.run; print(*sys.modules)").split())
    assert "simpy" in loaded
    assert not loaded & {"pandas", "matplotlib", "joblib"}


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "simulator", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, f"servesim {simulator.__version__}\n")


def test_a_scenario_in_any_form_is_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(find_scenario("quickstart").read_text())
    short = {"workload.limit": 20}
    expected = simulator.run("quickstart", short).summary
    loaded = simulator.load_scenario("quickstart")
    for source in (path, str(path), loaded, loaded.to_dict(), simulator.load_scenario("quickstart", short)):
        assert simulator.run(source, short).summary == expected
    assert simulator.run("quickstart", ("workload.limit=20",)).summary == expected
    assert simulator.run("quickstart", ["workload={trace: azure_conv_sample.csv, limit: 20}"]).summary == expected


def test_a_trace_lies_beside_the_file_of_a_loaded_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,10,2\n")
    (tmp_path / "s.yaml").write_text("extends: quickstart\nname: s\nworkload: {trace: mine.csv}\n")
    loaded = simulator.load_scenario(tmp_path / "s.yaml")
    assert len(simulator.run(loaded).requests) == len(simulator.run(replace(loaded, seed=3)).requests) == 2
    same = replace(loaded, name="same")
    assert len(simulator.compare([loaded, same]).samples[0][0].latencies_ms["ttft_ms"]) == 2


def test_overrides_of_a_loaded_scenario_take_along_what_follows_from_them() -> None:
    versions = [
        simulator.load_scenario(MINE, {"deployment.pools.main.scheduler.version": version})
        for version in ("vllm-0.33", "vllm-0.10")
    ]
    changed = simulator.load_scenario(versions[0], {"deployment.pools.main.scheduler.version": "vllm-0.10"})
    assert changed == versions[1] != versions[0]
    seeded = simulator.load_scenario(replace(versions[0], seed=4), {"workload.requests": 5})
    assert (seeded.seed, seeded.workload.requests) == (4, 5)


def test_nothing_is_lost_of_a_scenario_that_was_changed_by_hand() -> None:
    changed = replace(simulator.load_scenario(MINE), name="other")
    assert simulator.run(changed, seed=2).summary["scenario"] == "other"
    with pytest.raises(simulator.InputError, match="scenario other: was changed after it was read"):
        simulator.run(changed, {"workload.requests": 5})
    assert simulator.load_scenario(changed.to_dict(), {"workload.requests": 5}).name == "other"


def test_the_seed_and_the_trace_are_those_given(tmp_path: Path) -> None:
    first, again, other = (simulator.run(MINE, seed=seed).summary for seed in (0, np.int64(0), 1))
    assert first == again == simulator.run(MINE, {"seed": 0}).summary
    assert first["latency"] != other["latency"]
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n")
    assert list(simulator.run(MINE, trace=tmp_path / "t.csv").requests.prompt_tokens) == [10, 20]


def test_results_are_written_and_read(tmp_path: Path) -> None:
    run = simulator.run(MINE, out=tmp_path / "out")
    results = simulator.load_results(tmp_path / "out")
    assert results.summary == run.summary
    for name in ("requests", "segments", "steps"):
        assert getattr(results, name).equals(getattr(run, name))
    run.save(tmp_path / "again")
    for path in sorted((tmp_path / "out").iterdir()):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    simulator.run(MINE, {"deployment.pools.main.scheduler.version": "none"}, steps=tmp_path / "steps")
    assert (tmp_path / "steps" / "0").is_dir()


def test_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[int] = []
    simulator.run(MINE, progress=lambda now_ns, done: told.append(done))
    assert told == sorted(told)
    runs: list[int] = []
    simulator.compare([MINE, MINE | {"name": "same"}], seeds=2, progress=runs.append)
    assert runs == [1, 2, 3, 4]
    simulator.run(MINE, progress=True)
    assert capsys.readouterr().out == ""


def test_an_interrupted_run_raises_and_keeps_what_there_is(tmp_path: Path) -> None:
    import signal

    def interrupt(now_ns: int, done: int) -> None:
        signal.raise_signal(signal.SIGINT)

    many = {"workload.requests": 20_000, "workload.arrivals.rate": 1000}
    with pytest.raises(KeyboardInterrupt):
        simulator.run(MINE, many, out=tmp_path / "out", progress=interrupt)
    assert simulator.load_results(tmp_path / "out").partial


def test_reprs_are_short_and_html_is_escaped() -> None:
    odd = MINE | {"name": "<b>odd</b>"}
    run, scenario = simulator.run(odd), simulator.load_scenario(odd)
    comparison = simulator.compare([MINE, odd], seeds=2)
    for shown in (run, scenario, comparison):
        text, page = repr(shown), shown._repr_html_()
        assert len(text) < 300 and "\n" not in text and "<b>odd</b>" in text
        assert "&lt;b&gt;odd" in page and "<b>odd" not in page
        assert len(page) < 20_000
    assert "30 of 30 requests completed" in repr(run)
    assert "TTFT" in run._repr_html_() and "h100-sxm" in repr(scenario)
    for code in (warning["code"] for warning in run.summary["warnings"]):
        assert code in run._repr_html_()


def test_a_run_in_short_says_which_engine_it_is_and_whether_objectives_are_met() -> None:
    run = simulator.run(MINE, {"slo": {"ttft": {"p95": "1ms"}}})
    assert "SLO missed: TTFT p95" in repr(run)
    assert "vLLM 0.33, asynchronous, prefix caching" in run._repr_html_()


def test_a_run_without_completed_requests_has_a_repr() -> None:
    stopped = simulator.run(MINE, {"run.horizon": "1ms", "workload.arrivals": {"process": "all_at_once"}})
    assert "0 of 30 requests completed" in repr(stopped)
    assert "0 of 30" in stopped._repr_html_()


def test_a_comparison_as_frames(tmp_path: Path) -> None:
    fast = simulator.load_scenario(MINE | {"name": "fast"}, FAST)
    comparison = simulator.compare([MINE, fast], {"workload.requests": 20}, seeds=3, out=tmp_path / "out")
    document = comparison.document
    assert document["designs"]["fast"]["requests"]["submitted"] == 20
    medians, rows = comparison.metrics, comparison.differences
    expected = document["metrics"]["fast"]["latency.itl_ms.mean"]["median"]
    assert medians.loc["latency.itl_ms.mean", "fast"] == expected
    row = rows[(rows.design == "fast") & (rows.metric == "latency.itl_ms.mean")].iloc[0]
    assert row.low <= row.difference <= row.high < 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"mine", "fast", "compare.json", "latency.png"}
    assert comparison.latency_figure().axes and comparison.attribution_figure().axes


def test_replications_are_told_and_shown() -> None:
    done: list[int] = []
    found = simulator.replicate(MINE | {"name": "<i>odd</i>"}, seeds=2, jobs=1, progress=done.append)
    assert done == [1, 2]
    assert len(repr(found)) < 200
    assert "TTFT" in found._repr_html_() and "<i>odd" not in found._repr_html_()


def test_a_comparison_takes_a_seed_and_a_trace_for_all(tmp_path: Path) -> None:
    both = [MINE, simulator.load_scenario(MINE | {"name": "fast"}, FAST)]
    assert simulator.compare(both, seeds=2, seed=7).seeds == (7, 8)
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n")
    comparison = simulator.compare(both, trace=tmp_path / "t.csv", trace_format="native")
    assert comparison.document["designs"]["fast"]["requests"]["submitted"] == 2


def test_traces_are_read_and_described(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens,session\n0,10,2,a\n1.5,20,3,b\n")
    frame = simulator.load_trace(tmp_path / "t.csv")
    assert list(frame.arrival_s) == [0.0, 1.5]
    assert list(frame.output_tokens) == [2, 3]
    assert simulator.trace_stats(tmp_path / "t.csv")["requests"] == 2


def test_a_dry_run_simulates_nothing() -> None:
    assert simulator.dry_run(MINE)["pools"]["main"]["gpu"] == "h100-sxm"


def test_facts_are_frames() -> None:
    gpus = simulator.facts("gpus")
    assert gpus.loc["h100-sxm", "memory_bytes"] == 80 * 2**30
    for kind in ("models", "hosts", "schedulers", "routers", "proposers", "acceptance", "formats", "scenarios"):
        assert len(simulator.facts(kind))
    assert list(simulator.facts("models").index) == simulator.list_models()
    with pytest.raises(simulator.InputError, match=r"^gpu: is not known; did you mean gpus\?$"):
        simulator.facts("gpu")


def test_results_of_another_scenario_are_not_replaced(tmp_path: Path) -> None:
    run = simulator.run(MINE, out=tmp_path / "out")
    other = simulator.run(MINE | {"name": "other"})
    for attempt in (other.save, lambda folder: simulator.run(MINE | {"name": "other"}, out=folder)):
        with pytest.raises(simulator.InputError, match="holds results of the scenario mine"):
            attempt(tmp_path / "out")
    other.save(tmp_path / "out", force=True)
    assert simulator.load_results(tmp_path / "out").summary == other.summary != run.summary


def test_names_are_listed() -> None:
    assert "h100-sxm" in simulator.list_gpus()
    assert "llama-3.1-8b" in simulator.list_models()
    assert "quickstart" in simulator.list_scenarios()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("quickstrat",), r"^quickstrat: no such file, and no shipped .*did you mean quickstart\?$"),
        ((MINE, {"workload.limt": 1}), r"^overrides: workload.limt: unknown key; did you mean limit\?$"),
        ((MINE, ["workload.limt=1"]), r"^overrides workload.limt=1: workload.limt: unknown key; did you mean limit\?$"),
        ((MINE, "workload.limit=1"), r"^overrides: expected a mapping such as .*, or a list of texts"),
        ((MINE, [3]), r"^overrides: expected a mapping"),
        ((MINE, {3: 4}), r"^overrides: expected a dotted key such as 'workload.limit', found 3$"),
        ((MINE, {"workload.limit": {1, 2}}), r"^overrides: workload.limit: expected plain values .*, found type set$"),
        ((MINE, {"workload.limit": "7"}), r"^overrides: workload.limit: expected an integer, found text '7'"),
        ((MINE, {"workload.limit": float("nan")}), r"^overrides: workload.limit: expected an integer"),
        ((MINE | {"slo": {"ttft": 500}},), r"^scenario: slo\.ttft\S*: a duration needs a unit, such as 250ms"),
        ((MINE | {"modl": "x"},), r"^scenario: modl: unknown key; did you mean model\?$"),
        ((MINE | {4: "x"},), r"^scenario: a key must be text, found 4$"),
        ((MINE, {"workload.requests": 10**5000}), r"^overrides: workload.requests: a number of 16,610 bits is out of"),
        ((MINE, {"name": "\udc80"}), r"^overrides: name: '\\udc80' is no valid text$"),
        ((MINE, {"workload.arrivals.rate": 10**308}), r"^overrides: workload.arrivals.rate: "),
        ((None,), r"^scenario: expected a path, .* a mapping or a Scenario, found type None"),
        (("",), r"^the scenario's name is empty$"),
        ((MINE, {"deployment.pools.main.gpu": "h1000"}), r"^deployment.pools.main.gpu: .*h1000"),
    ],
)
def test_a_mistake_is_one_line_without_a_chain(arguments: tuple[Any, ...], expected: str) -> None:
    with pytest.raises(simulator.InputError, match=expected) as caught:
        simulator.run(*arguments)
    assert "\n" not in str(caught.value)
    shown = traceback.format_exception(caught.value)
    assert not any("During handling" in line or "direct cause" in line for line in shown)
    assert len((caught.value.__traceback__ and traceback.extract_tb(caught.value.__traceback__)) or ()) <= 2


def test_a_value_inside_itself_is_a_mistake() -> None:
    circle: dict[str, Any] = dict(MINE)
    circle["slo"] = circle
    with pytest.raises(simulator.InputError, match="scenario: nested too deeply, or a value inside itself"):
        simulator.load_scenario(circle)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", 2**63])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(simulator.InputError, match="seed: expected a whole number of at least 0"):
        simulator.run(MINE, seed=seed)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for parameter in ("out", "steps"):
        with pytest.raises(simulator.InputError, match="file"):
            simulator.run(MINE, **{parameter: tmp_path / "file" / "inside"})


def test_parameters_are_named_as_here_and_not_as_options(tmp_path: Path) -> None:
    with pytest.raises(simulator.InputError, match=r"^out and steps: give two folders"):
        simulator.run(MINE, out=tmp_path / "a", steps=tmp_path / "a" / "b")
    with pytest.raises(simulator.InputError, match=r"^baseline mien: no design has that name; did you mean mine\?"):
        simulator.compare([MINE, MINE | {"name": "same"}], baseline="mien")
    with pytest.raises(simulator.InputError, match=r"^trace_format: 'x' is not known"):
        simulator.load_trace("azure_conv_sample.csv", "x")
    with pytest.raises(simulator.InputError, match="a comparison needs two scenarios or more"):
        simulator.compare("quickstart")  # type: ignore[arg-type]
    with pytest.raises(simulator.InputError, match="a comparison needs two scenarios or more"):
        simulator.compare(simulator.load_scenario(MINE))  # type: ignore[arg-type]
    for counts in ({"seeds": 0}, {"jobs": 0}, {"jobs": -2}, {"seeds": True}, {"seeds": 1.5}):
        with pytest.raises(simulator.InputError, match=r"^(seeds|jobs): expected a whole number of at least 1"):
            simulator.compare([MINE, MINE | {"name": "same"}], **counts)
    with pytest.raises(simulator.InputError, match="scenario 1 and scenario 2 are both named mine"):
        simulator.compare([MINE, MINE])


def test_dir_shows_public_names_alone() -> None:
    assert {name for name in dir(simulator) if not name.startswith("__")} == set(simulator.__all__) - {"__version__"}
