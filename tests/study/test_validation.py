"""Measured rows: reading them, simulating them again, and saying how far off."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cost_models import HostModel, load_host
from simulator.calibration.host import calibrate_host, host_file, read_benchmarks
from simulator.cli import main
from simulator.errors import InputError
from simulator.validation.errors import Compared, overload_counts, summed_up
from simulator.validation.host_samples import observe, running_requests
from simulator.validation.measured import read_rows
from simulator.validation.replay import Predicted, replay
from simulator.validation.requests import requests_of
from simulator.validation.run import compare, read_measured
from simulator.validation.setting import Row
from tests.helpers import bench_serve_result

HEADER = (
    "experiment,stage,gpu,tp,model,weight_dtype,max_num_seqs,max_num_batched_tokens,request_rate,duration_s,"
    "prompt_groups,prompts_per_group,system_prompt_tokens,prefix_caching,input_tokens_mean,output_tokens,"
    "ttft_mean_ms,ttft_p90_ms,itl_mean_ms,itl_reported_ms,e2e_mean_ms,overloaded,note"
)
STAGES = (
    "a,0,H100,1,meta-llama/Llama-3.1-8B-Instruct,FP16,128,2048,4,20,10,10,100,True,575,40,25,30,7.5,9,320,False,",
    "a,1,H100,1,meta-llama/Llama-3.1-8B-Instruct,FP16,128,2048,8,20,10,10,100,True,575,40,26,31,8.0,9,340,False,",
)


def table(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def write_empty(tmp_path: Path) -> Path:
    """Return a file with only a header."""
    path = tmp_path / "empty.csv"
    path.write_text(HEADER + "\n", encoding="utf-8")
    return path


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_row_says_what_ran_and_what_was_measured(tmp_path: Path) -> None:
    first, second = read_rows(table(tmp_path, *STAGES))
    setting = first.setting
    assert setting is not None
    assert (setting.model, setting.gpu, setting.tensor_parallel) == ("llama-3.1-8b", "h100-sxm", 1)
    assert (setting.load.requests, setting.load.rate, setting.load.duration_ns) == (80, 4.0, 20 * 10**9)
    assert setting.prompt_pool is not None
    assert (setting.prompt_pool.prompts, setting.prompt_pool.groups) == (100, 10)
    assert "itl_reported_ms" not in first.measured
    assert first.measured["itl_mean_ms"] == 7.5
    assert first.run == second.run
    assert (first.stage, second.stage) == (0, 1)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (STAGES[0].replace("meta-llama/Llama-3.1-8B-Instruct", "acme/unheard-of-7b"), "unknown model"),
        (STAGES[0].replace("H100", "B9000"), "unknown GPU"),
        (STAGES[0].replace("FP16", "NF3"), "weight_dtype 'nf3'"),
        (STAGES[0].replace("H100,1", "H100,"), "tp is empty"),
        (STAGES[0].replace(",4,20,", ",,20,"), "neither request_rate nor concurrency"),
        (STAGES[0].replace(",4,20,", ",4,,"), "needs a request_rate above 0, and n_requests or duration_s"),
    ],
)
def test_a_row_that_cannot_be_simulated_is_kept_with_the_reason(tmp_path: Path, row: str, reason: str) -> None:
    (found,) = read_rows(table(tmp_path, row))
    assert found.setting is None
    assert reason in found.reason
    (compared,) = compare([found], jobs=1)
    assert compared.left_out.startswith("not simulated: ")


@pytest.mark.parametrize(
    ("header", "row", "error"),
    [
        (HEADER.replace("gpu,", "card,"), STAGES[0], ":1: missing column gpu"),
        (HEADER.replace("request_rate", "speed"), STAGES[0], ":1: needs a column request_rate or concurrency"),
        ("model,gpu,request_rate", "x,y,1", ":1: has no metric such as ttft_mean_ms"),
        (HEADER, STAGES[0].replace(",7.5,", ",fast,"), ":2: itl_mean_ms: expected a number, found 'fast'"),
        (HEADER, STAGES[0].replace("H100,1,", "H100,1.5,"), ":2: tp: expected a whole number"),
        (HEADER, STAGES[0].replace("H100,1,", "H100,-2,"), ":2: tp: expected a whole number"),
        (HEADER, STAGES[0].replace("a,0,", "a,x1,"), ":2: stage: expected a number, found 'x1'"),
        (HEADER, STAGES[0].replace("a,0,", "a,inf0,"), ":2: stage: expected a number"),
        (HEADER, STAGES[0].replace(",4,20,", ",4,inf,"), ":2: duration_s: expected 0, or a number from 1e-09"),
        (HEADER, STAGES[0].replace(",128,2048,", ',"1,024",2048,'), ":2: max_num_seqs: expected a number"),
        (
            HEADER,
            STAGES[0].replace(",575,40,", ",-575,40,"),
            ":2: input_tokens_mean: expected 0, or a number from 1e-09",
        ),
        (HEADER.replace("stage,", "gpu,"), STAGES[0], ":1: the column gpu is there twice"),
    ],
)
def test_a_mistake_names_file_line_and_column(tmp_path: Path, header: str, row: str, error: str) -> None:
    with pytest.raises(InputError, match=error.replace("(", r"\(")):
        read_rows(table(tmp_path, row, header=header))


def test_lengths_from_quantiles(tmp_path: Path) -> None:
    header = "gpu,tp,model,input_len_dist,output_len_dist,request_rate,n_requests,ttft_p50_ms"
    row = (
        "A100-80GB,1,llama-3-8b,x; input_tokens_p25=120;input_tokens_p50=280;input_tokens_p99=2100,"
        "output_tokens_p50=310;output_tokens_p99=1200;cap output_tokens_max=512,2,100,50"
    )
    (found,) = read_rows(table(tmp_path, row, header=header))
    assert found.setting is not None
    assert found.setting.output_tokens.max == 512  # type: ignore[union-attr]
    points = dict(found.setting.prompt_tokens.points)  # type: ignore[union-attr]
    assert points[0.25] == 120 and points[0.5] == 280 and points[1.0] == 2100
    assert points[0.0] == pytest.approx(120 * 120 / 280, abs=1)


@pytest.mark.parametrize(
    ("name", "simulated", "rows"),
    [
        ("open_loop_vllm", 53, 53),
        ("closed_loop_h100", 226, 307),
        ("poisson_a100", 30, 67),
        ("trtllm_online_h100", 0, 36),
    ],
)
def test_every_row_of_the_reference_data_is_simulated_or_says_why(
    shared: Path, name: str, simulated: int, rows: int
) -> None:
    found = read_rows(shared / "truth" / f"{name}.csv")
    assert len(found) == rows
    assert all((row.setting is None) == bool(row.reason) for row in found)
    assert sum(row.setting is not None for row in found) >= simulated


# --- simulating and comparing -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return read_rows(table(tmp_path_factory.mktemp("rows"), *STAGES))


def as_measured(row: Row, predicted: Predicted) -> Row:
    """Return the row with the simulated values as measured ones."""
    return replace(row, measured={name: predicted.metrics[name] for name in row.measured})


def replayed(rows: list[Row], host: HostModel | None = None) -> list[Predicted]:
    return replay([row.setting for row in rows if row.setting is not None], 0, host)


def test_what_the_simulation_says_is_met_exactly_by_itself(stages: list[Row]) -> None:
    measured = [as_measured(*pair) for pair in zip(stages, replayed(stages), strict=True)]
    summary = summed_up(compare(measured, jobs=1))
    assert set(summary) == {"all", "H100", "meta-llama/Llama-3.1-8B-Instruct", "first_stages"}
    for metrics in summary.values():
        assert all(found["p90_ape"] == found["bias"] == found["median_abs"] == 0 for found in metrics.values())
    assert summary["all"]["itl_mean_ms"]["n"] == 2
    # Percentiles of the first stage include the server's warm-up, and are reported separately.
    assert summary["all"]["ttft_p90_ms"]["n"] == summary["first_stages"]["ttft_p90_ms"]["n"] == 1


def test_stages_run_one_after_the_other_on_a_warm_server(stages: list[Row]) -> None:
    """The second stage finds its prompts in the prefix cache, the first had to compute the hundred of them."""
    cold, warm = replayed(stages)
    (alone,) = replayed([stages[1]])
    assert warm.metrics["ttft_mean_ms"] < 0.9 * alone.metrics["ttft_mean_ms"]
    assert cold.metrics["ttft_p90_ms"] > cold.metrics["ttft_p50_ms"]


def test_predictions_do_not_depend_on_the_number_of_processes(stages: list[Row]) -> None:
    one, two = (compare(stages, seeds=2, jobs=jobs) for jobs in (1, 2))
    assert [entry.predicted for entry in one] == [entry.predicted for entry in two]


def test_a_load_beyond_capacity_is_predicted_to_overload(tmp_path: Path) -> None:
    """Requests come four times as fast as 16 slots can serve them; at a tenth of that nothing waits."""
    heavy = STAGES[0].replace(",128,2048,4,20,", ",16,2048,200,40,").replace(",False,", ",True,")
    light = STAGES[0].replace("a,0", "b,0").replace(",128,2048,4,20,", ",16,2048,10,40,")
    compared = compare(read_rows(table(tmp_path, heavy, light)), jobs=1)
    assert overload_counts(compared) == {
        "overloaded": 1,
        "predicted_to_overload": 1,
        "not_overloaded": 1,
        "wrongly_predicted_to_overload": 0,
    }
    assert [bool(entry.left_out) for entry in compared] == [True, False]


def test_errors_are_signed_absolute_and_relative(stages: list[Row]) -> None:
    predicted = Predicted({"itl_mean_ms": 9.0, "e2e_mean_ms": 306.0}, False, 5.0, 575.0, 40.0)
    other = Predicted({"itl_mean_ms": 8.8, "e2e_mean_ms": 340.0}, False, 5.0, 575.0, 40.0)
    found = summed_up([Compared(stages[0], predicted), Compared(stages[1], other)])["all"]
    assert found["itl_mean_ms"] == {
        "unit": "ms",
        "n": 2,
        "median_ape": 15.0,
        "mean_ape": 15.0,
        "p90_ape": 19.0,
        "bias": 15.0,
        "median_abs": 1.15,
        "p90_abs": 1.43,
    }
    assert found["e2e_mean_ms"]["bias"] == pytest.approx((306 / 320 - 1) * 50, rel=1e-5)


def test_noted_rows_are_predicted_but_not_summed_up(tmp_path: Path) -> None:
    rows = read_rows(table(tmp_path, STAGES[0] + "a hiccup", STAGES[1]))
    compared = compare(rows, jobs=1)
    assert compared[0].left_out == "noted: a hiccup"
    assert compared[0].predicted is not None
    assert summed_up(compared)["all"]["itl_mean_ms"]["n"] == 1


def test_rows_that_the_simulation_cannot_answer_are_named(tmp_path: Path) -> None:
    """One token has no time between tokens; a prompt beyond the context is refused; 70B does not fit one GPU."""
    one = STAGES[0].replace(",575,40,", ",575,1,")
    long = STAGES[0].replace("a,0", "b,0").replace(",575,40,", ",200000,40,")
    large = STAGES[0].replace("a,0", "c,0").replace("Llama-3.1-8B", "Llama-3.1-70B")
    compared = compare(read_rows(table(tmp_path, one, long, large)), jobs=1)
    assert [name for name, _, _ in compared[0].pairs()] == ["ttft_mean_ms", "ttft_p90_ms", "e2e_mean_ms"]
    assert "refused" in compared[1].left_out
    assert "does not fit" in compared[2].left_out
    assert overload_counts(compared)["wrongly_predicted_to_overload"] == 0


def test_rows_of_one_experiment_on_other_servers_are_not_one_run(tmp_path: Path) -> None:
    other = STAGES[1].replace(",128,2048,", ",16,2048,")
    apart = compare(read_rows(table(tmp_path, STAGES[0], other)), seeds=1, jobs=1)[1].predicted
    (alone,) = replayed(read_rows(table(tmp_path, other)))
    assert apart == alone


# --- host terms -------------------------------------------------------------------------------------------------------


def test_running_requests_follow_from_littles_law(stages: list[Row]) -> None:
    assert running_requests(stages[1], 40) == pytest.approx(8 * 0.340)


def test_an_observation_adds_up_to_the_simulated_time(stages: list[Row]) -> None:
    """At the simulated number of running requests, units x terms and the rest are the simulated time per token."""
    host = load_host("vllm", "h100-sxm")
    row, predicted = stages[1], replayed(stages, host)[1]
    measured = replace(row, measured=row.measured | {"e2e_mean_ms": predicted.running / 8 * 1e3})
    seen = observe(measured, predicted, host)
    assert seen is not None
    terms = (host.kernel_scale, host.device_step, host.device_logit, host.device_sync)
    total = sum(unit * term for unit, term in zip(seen.step_units, terms, strict=True)) + seen.step_rest_ns
    assert total / 1e6 == pytest.approx(predicted.metrics["itl_mean_ms"], rel=1e-6)


def bench_result(path: Path, host: HostModel, model: str = "meta-llama/Llama-3.1-8B-Instruct") -> Path:
    """Return a `vllm bench serve` result of 300 requests, as a server with the terms of `host` would give."""
    from simulator.engine.simulation import simulate
    from simulator.validation.replay import _scenario, deployed

    header = "gpu,tp,model,request_rate,n_requests,input_tokens_mean,output_tokens,max_num_seqs,max_num_batched_tokens"
    (row,) = read_rows(table(path.parent, f"H100,1,{model},10,300,300,60,1024,8192,1", header=f"{header},ttft_mean_ms"))
    assert row.setting is not None
    setting = replace(row.setting, prefix_caching=False)
    record = simulate(_scenario(setting, 7), requests_of([setting], 7), [deployed(setting, host)])
    path.write_text(json.dumps(bench_serve_result(record, model, 10.0)), encoding="utf-8")
    return path


def test_a_bench_result_is_a_load_and_what_it_measured(tmp_path: Path) -> None:
    shipped = load_host("vllm", "h100-sxm")
    path = bench_result(tmp_path / "result.json", shipped)
    (row,) = read_measured([path], {"gpu": "H100"})
    assert row.setting is not None and row.setting.load.detail is not None
    assert row.measured["ttft_p99_ms"] >= row.measured["ttft_p50_ms"] > 0
    found = summed_up(compare([row], jobs=1))["all"]
    assert all(found[name]["p90_ape"] < 0.01 for name in row.measured if name.endswith("_ms"))


def test_a_benchmark_of_ones_own_corrects_the_host_terms(tmp_path: Path) -> None:
    """A server whose steps take 1.5 ms more and whose front end takes 20 ms more: half of its requests show it, and
    the other half is then predicted."""
    shipped = load_host("vllm", "h100-sxm")
    slow = replace(shipped, device_step=shipped.device_step + 1.5e-3, request=shipped.request + 20e-3)
    found = calibrate_host(read_benchmarks([bench_result(tmp_path / "r.json", slow)], {"gpu": "H100"}), jobs=1)
    assert found.groups == "part"
    before, after = (summed_up(compared)["all"] for compared in (found.before, found.after))
    for metric in ("itl_mean_ms", "ttft_mean_ms"):
        assert before[metric]["median_ape"] > 10
        assert after[metric]["median_ape"] < 2
    text = host_file(found.hosts, "vLLM", "a test")
    (tmp_path / "host.yaml").write_text(text, encoding="utf-8")
    again = load_host(str(tmp_path / "host.yaml"), "h100-sxm")
    assert again.request == pytest.approx(found.hosts["h100-sxm"].request, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"ttfts": None}, "ttfts: missing; run `vllm bench serve` with --save-result --save-detailed"),
        ({"ttfts": [1.0]}, "different lengths"),
        ({"itls": "x"}, "itls: expected a list for each"),
        ({"model_id": None}, "model_id: missing"),
        ({"errors": ["boom"] * 300}, "every request failed"),
        ({"start_times": [0.0]}, "start_times: expected 300 numbers, found 1"),
    ],
)
def test_a_broken_bench_result_is_named(tmp_path: Path, change: dict[str, object], error: str) -> None:
    path = bench_result(tmp_path / "result.json", HostModel())
    data = {key: value for key, value in (json.loads(path.read_text()) | change).items() if value is not None}
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match=error.replace("(", r"\(")):
        read_measured([path], {"gpu": "H100"})


def test_a_bench_result_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give --gpu"):
        read_measured([bench_result(tmp_path / "result.json", HostModel())], {})


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_every_row_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, *STAGES, STAGES[0].replace("a,0", "c,0").replace("H100", "B9000"))
    assert main(["validate", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "left out of the errors, 1 row: not simulated: unknown GPU" in printed
    assert "overload: 0 of 0 overloaded rows predicted to overload; 0 of 2 others" in printed
    with (tmp_path / "out" / "validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["itl_mean_ms_measured"] for row in rows] == ["7.5", "8", "7.5"]
    assert [bool(row["itl_mean_ms_predicted"]) for row in rows] == [True, True, False]
    summary = json.loads((tmp_path / "out" / "validation.json").read_text())
    error = 100 * abs(float(rows[1]["ttft_p90_ms_predicted"]) / 31 - 1)
    assert summary["errors"]["all"]["ttft_p90_ms"]["median_ape"] == pytest.approx(error, rel=1e-3)
    assert (tmp_path / "out" / "validation.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_names_mistakes_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, error in (
        ([str(tmp_path / "none.csv")], "no such file"),
        ([str(table(tmp_path, *STAGES)), "--seeds", "0"], "--seeds: expected a whole number of at least 1"),
        ([str(table(tmp_path, *STAGES)), "--set", "speed=9"], "--set speed=9: expected KEY=VALUE"),
        (
            [str(table(tmp_path, *STAGES)), "--gpu", "h100-sxm"],
            "gpu: describes the server of a `vllm bench serve` JSON",
        ),
        ([str(table(tmp_path, *STAGES))] * 2, "is given twice"),
        ([str(table(tmp_path, *STAGES)), "--leave-one-model-out"], "needs rows of two models"),
        ([str(write_empty(tmp_path))], "no rows after the header"),
    ):
        assert main(["validate", *arguments]) == 2
        printed = capsys.readouterr()
        assert error in printed.err
        assert printed.err.count("\n") == 1


def test_the_picture_has_no_points_for_rows_left_out(stages: list[Row], tmp_path: Path) -> None:
    from simulator.validation.report import write_report

    left_out = [
        Compared(replace(row, note="x"), predicted) for row, predicted in zip(stages, replayed(stages), strict=True)
    ]
    paths = write_report(left_out, tmp_path / "out")
    assert [path.name for path in paths] == ["validation.csv", "validation.json", "validation.png"]
    assert json.loads(paths[1].read_text())["errors"] == {"all": {}}
    assert paths[2].read_bytes().startswith(b"\x89PNG")
