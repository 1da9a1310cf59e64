"""Results of `vllm bench serve --save-result` without their requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.calibration.host import calibrate_host, print_calibration, read_benchmarks
from simulator.cli import main
from simulator.errors import InputError
from simulator.scenario.lengths import Fixed, LogNormal
from simulator.validation.errors import summed_up
from simulator.validation.replay import Predicted, replay
from simulator.validation.run import compare, read_measured
from simulator.validation.setting import Row, Setting

#: The fields that vLLM 0.15 writes without --save-detailed.
RESULT: dict[str, Any] = {
    "date": "20260105-101500",
    "backend": "vllm",
    "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 300,
    "request_rate": 10.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 31.2,
    "completed": 300,
    "failed": 0,
    "total_input_tokens": 300 * 512,
    "total_output_tokens": 300 * 60,
    "request_throughput": 9.6,
    "request_goodput": None,
    "output_throughput": 577.0,
    "total_token_throughput": 5500.0,
    "max_output_tokens_per_s": 900.0,
    "max_concurrent_requests": 12,
    "mean_ttft_ms": 25.0,
    "median_ttft_ms": 24.0,
    "std_ttft_ms": 5.0,
    "p99_ttft_ms": 40.0,
    "mean_tpot_ms": 7.5,
    "median_tpot_ms": 7.4,
    "std_tpot_ms": 0.4,
    "p99_tpot_ms": 8.5,
    "mean_itl_ms": 7.5,
    "median_itl_ms": 7.1,
    "std_itl_ms": 2.0,
    "p99_itl_ms": 20.0,
}


def write(tmp_path: Path, name: str = "result.json", **changes: Any) -> Path:
    """Write `RESULT` with other values, and without those that are None."""
    path = tmp_path / name
    data = {key: value for key, value in (RESULT | changes).items() if value is not None or RESULT.get(key) is None}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def read(path: Path, **given: str) -> Row:
    (row,) = read_measured([path], {"gpu": "h100-sxm"} | given)
    return row


def setting_of(path: Path, **given: str) -> Setting:
    found = read(path, **given).setting
    assert found is not None
    return found


def test_totals_make_the_load_and_means_what_was_measured(tmp_path: Path) -> None:
    row = read(write(tmp_path))
    assert row.setting is not None
    load = row.setting.load
    assert (load.requests, load.rate, load.duration_ns, load.limit) == (300, 10.0, 30 * 10**9, None)
    assert (row.setting.prompt_tokens, row.setting.output_tokens) == (Fixed(512), Fixed(60))
    assert row.measured["ttft_p50_ms"] == 24.0 and row.measured["itl_p99_ms"] == 20.0
    assert row.measured["output_tok_s"] == 577.0
    said = "; ".join(row.assumptions)
    assert "Poisson arrivals at 10/s, drawn again" in said
    assert "in the file and not compared: std_itl_ms, std_tpot_ms, std_ttft_ms" in said


def test_lengths_that_vary_have_their_mean_and_a_spread_that_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path, total_output_tokens=300 * 60 + 7)
    law = setting_of(path).output_tokens
    assert isinstance(law, LogNormal)
    assert (law.mean, law.cv) == (pytest.approx(60 + 7 / 300), 0.01)
    wide = setting_of(path, output_cv="0.8", input_cv="0.5")
    assert isinstance(wide.output_tokens, LogNormal) and isinstance(wide.prompt_tokens, LogNormal)
    assert (wide.output_tokens.cv, wide.prompt_tokens.cv) == (0.8, 0.5)


def test_requests_that_do_not_say_when_they_were_sent_tell_their_spread(tmp_path: Path) -> None:
    """As older versions write them: means are compared, over arrivals that are drawn again."""
    detail = {
        "input_lens": [512] * 300,
        "output_lens": [30, 90] * 150,
        "ttfts": [0.025] * 300,
        "itls": [[0.0075]] * 300,
    }
    row = read(write(tmp_path, **detail))
    assert row.setting is not None and row.setting.load.detail is None
    law = row.setting.output_tokens
    assert isinstance(law, LogNormal) and law.cv == pytest.approx(0.5)
    assert row.measured["ttft_mean_ms"] == 25.0
    gated = read(write(tmp_path, "gated.json", **detail, max_concurrency=8))
    assert gated.setting is not None and gated.setting.load.detail is not None
    assert gated.setting.load.detail.concurrency == 8


def test_the_spread_of_times_tells_that_of_outputs(tmp_path: Path) -> None:
    law = setting_of(write(tmp_path, mean_e2el_ms=465.0, std_e2el_ms=220.0)).output_tokens
    assert isinstance(law, LogNormal)
    assert law.cv == pytest.approx((220**2 - 5**2) ** 0.5 / 440)


@pytest.mark.parametrize(
    ("changes", "rate", "limit", "name"),
    [
        ({"request_rate": "inf"}, None, None, "all at once"),
        ({"request_rate": "inf", "max_concurrency": 8}, None, 8, "8 clients"),
        ({"max_concurrency": 8}, 10.0, 8, "10/s"),
    ],
)
def test_arrivals_are_those_of_the_client(
    tmp_path: Path, changes: dict[str, Any], rate: float | None, limit: int | None, name: str
) -> None:
    row = read(write(tmp_path, **changes))
    assert row.setting is not None
    assert (row.setting.load.rate, row.setting.load.limit, row.load) == (rate, limit, name)


def test_a_limit_holds_back_and_bursts_queue(tmp_path: Path) -> None:
    plain, bursty, gated = (
        predicted(write(tmp_path, request_rate=40.0, **changes))
        for changes in ({}, {"burstiness": 0.1}, {"max_concurrency": 2})
    )
    assert bursty.metrics["ttft_p99_ms"] > 1.2 * plain.metrics["ttft_p99_ms"]
    assert gated.running <= 2 < plain.running


def predicted(path: Path) -> Predicted:
    (found,) = replay([setting_of(path)], 0)
    return found


def as_measured(predicted: Predicted) -> dict[str, float]:
    """Return the statistics of a simulated run, by their names in the file."""
    found = {}
    for name, value in predicted.metrics.items():
        if name.endswith("_ms"):
            metric, statistic, _ = name.split("_")
            found[f"{'median' if statistic == 'p50' else statistic}_{metric.replace('e2e', 'e2el')}_ms"] = value
    return found


def test_what_the_simulation_says_is_met_by_itself(tmp_path: Path) -> None:
    """Other draws of the arrivals differ by a few percent, in a tail of three requests by more."""
    path = write(tmp_path, "again.json", **as_measured(predicted(write(tmp_path))))
    (compared,) = compare([read(path)], seeds=3, jobs=1)
    errors = summed_up([compared])["all"]
    for name in ("ttft_mean_ms", "tpot_mean_ms", "itl_mean_ms", "itl_p50_ms", "e2e_mean_ms", "ttft_p50_ms"):
        assert errors[name]["median_ape"] < 3, name


def test_one_result_is_fitted_and_two_are_tested_on_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server whose steps take 1.5 ms more and whose front end takes 20 ms more."""

    def slower(path: Path) -> Path:
        data = json.loads(path.read_text())
        for name in data:
            if name.endswith("_ms"):
                data[name] += 20.0 if "ttft" in name else 1.5
        path.write_text(json.dumps(data))
        return path

    def result(name: str, **changes: Any) -> Path:
        return slower(write(tmp_path, name, **changes, **as_measured(predicted(write(tmp_path, **changes)))))

    one, other = result("one.json"), result("other.json", request_rate=4.0)
    alone = calibrate_host(read_benchmarks([one], {"gpu": "h100-sxm"}), jobs=1)
    assert alone.groups == ""
    print_calibration(alone)
    assert "not tested on held-out rows" in capsys.readouterr().out
    both = calibrate_host(read_benchmarks([one, other], {"gpu": "h100-sxm"}), jobs=1)
    assert both.groups == "run"
    before, after = (summed_up(compared)["all"] for compared in (both.before, both.after))
    for name, most in (("itl_mean_ms", 3), ("ttft_mean_ms", 5)):
        assert before[name]["median_ape"] > 10 and after[name]["median_ape"] < most


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"completed": 0}, "completed: expected an integer of at least 1"),
        ({"completed": 10**8}, "completed: expected an integer of at most 10000000"),
        ({"total_input_tokens": None}, "total_input_tokens"),
        ({"total_output_tokens": -3}, "total_output_tokens: expected an integer"),
        ({"total_output_tokens": 10**400}, "total_output_tokens: expected an integer"),
        ({"request_rate": "fast"}, "request_rate: expected a number"),
        ({"request_rate": 1e-8}, "last for more than a century"),
        ({"burstiness": 1e-5}, "burstiness: expected a number from 0.01"),
        ({"burstiness": "some"}, "burstiness: expected a number from 0.01"),
        ({"max_concurrency": 2.5}, "max_concurrency: expected an integer"),
        ({"mean_ttft_ms": "x"}, "mean_ttft_ms: expected a number"),
        ({"mean_ttft_ms": float("nan")}, "mean_ttft_ms: expected a number"),
        ({name: None for name in RESULT if name.endswith("_ms")}, "neither requests"),
    ],
)
def test_a_broken_result_is_named(tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        read(write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"kv_cache": "int4"}, "kv_cache: unknown value 'int4'"),
        ({"version": "vllm-9"}, "version: unknown value 'vllm-9'"),
        ({"max_num_seqs": "0"}, "max_num_seqs: expected a whole number from 1"),
        ({"tensor_parallel": "two"}, "tensor_parallel: expected a whole number"),
        ({"async_scheduling": "maybe"}, "async_scheduling: expected true or false"),
        ({"gpu_memory_utilization": "nan"}, "gpu_memory_utilization: expected a number from 0.01 to 1"),
        ({"host": "nowhere"}, "nowhere"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, given: dict[str, str], error: str) -> None:
    with pytest.raises(InputError, match=error):
        read(write(tmp_path), **given)


def test_options_of_the_server_are_simulated(tmp_path: Path) -> None:
    given = {"max_num_seqs": "4", "async_scheduling": "false", "version": "vllm-0.10", "gpu_memory_utilization": "0.8"}
    setting = setting_of(write(tmp_path), **given)
    assert (setting.max_num_seqs, setting.async_scheduling, setting.version) == (4, False, "vllm-0.10")
    assert setting.gpu_memory_utilization == 0.8
    few, many = (replay([each], 0)[0].metrics for each in (setting, setting_of(write(tmp_path))))
    assert few["ttft_mean_ms"] > 2 * many["ttft_mean_ms"]
    assert np.isfinite(few["itl_p99_ms"])


def test_the_command_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(write(tmp_path)), "--gpu", "h100-sxm", "--seeds", "1", "--jobs", "1"]) == 0
    assert "drawn again" in capsys.readouterr().out
