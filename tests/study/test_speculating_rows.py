"""Reading of rows of speculative decoding: metric and unit, server, baseline and acceptance."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.scenario.speculation import DraftModel, Ngram
from simulator.validation.run import compare
from simulator.validation.setting import Setting
from simulator.validation.speculation.metrics import read_metric
from tests.study.test_validation_speculation import read, tpot

LENGTH = {"metric": "acceptance length", "k": "2"}
VANILLA = {"draft_or_method": "vanilla", "k": "0", "metric": "TPOT"}


def length_of(setting: Setting | None) -> float:
    """Return the acceptance length of a setting's drafts."""
    assert setting is not None and setting.speculation is not None
    return 1 + sum(setting.speculation.acceptance.cumulative)  # type: ignore[union-attr]


# --- metrics and units ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "unit", "name", "clients", "expected"),
    [
        ("TPOT", "", "tpot_mean_ms", 1, 2.0),
        ("TPOT", "s", "tpot_mean_ms", 1, 2000.0),
        ("TPOT (s)", "", "tpot_mean_ms", 1, 2000.0),
        ("mean_tpot_us", "", "tpot_mean_ms", 1, 0.002),
        ("TPOT", "ms/token", "tpot_mean_ms", 1, 2.0),
        ("output tok/s", "tokens/s", "output_tok_s", 8, 2.0),
        ("output tok/s per user", "tok/s", "output_tok_s", 8, 16.0),
        ("output throughput", "tok/s/user", "output_tok_s", 8, 16.0),
        ("decode tok/s", "tok/s", "tpot_mean_ms", 8, 4000.0),
        ("decode tok/s per client", "tok/s", "tpot_mean_ms", 8, 500.0),
        ("tok/s per user", "", "tpot_mean_ms", None, 500.0),
        ("mean acceptance length (incl. bonus)", "tok/step", "acceptance_length", None, 2.0),
        ("mean accepted length (excl. bonus)", "", "acceptance_length", None, 3.0),
        ("acceptance length w/o the bonus token", "", "acceptance_length", None, 3.0),
        ("tokens per step without bonus", "", "acceptance_length", None, 3.0),
        ("speedup of TPOT", "x", "tpot_speed_up", None, 2.0),
    ],
)
def test_a_value_of_two_is_read_by_metric_and_unit(
    metric: str, unit: str, name: str, clients: int | None, expected: float
) -> None:
    found = read_metric(metric, unit)
    assert found.name == name
    assert found.quantity(2.0, clients) == pytest.approx(expected)


@pytest.mark.parametrize(
    "metric", ["TPOT p99", "tpot_p99_ms", "99th percentile TPOT", "median TPOT", "max TPOT", "output tok/s per GPU"]
)
def test_what_is_no_mean_of_clients_is_not_compared(metric: str) -> None:
    found = read_metric(metric, "")
    assert (found.name, found.reason) == ("", f"metric {metric!r} is not compared")


@pytest.mark.parametrize(("metric", "unit"), [("TPOT", "tok/s"), ("TPOT (s)", "ms"), ("speed-up", "%")])
def test_a_unit_that_is_another_or_contradicts_is_refused(metric: str, unit: str) -> None:
    assert read_metric(metric, unit).reason == f"unit {unit!r} of {metric} is not read"


def test_a_baseline_has_the_unit_of_its_row(tmp_path: Path) -> None:
    seconds = tpot(2, 0.0035, unit="s", baseline_value="0.007")
    user = {"metric": "output tok/s per user", "value": "50", "baseline_value": "25", "batch_or_concurrency": "8"}
    one, other = read(tmp_path, seconds, user)
    assert one.measured == pytest.approx({"tpot_mean_ms": 3.5, "plain_tpot_mean_ms": 7.0, "tpot_speed_up": 2.0})
    assert other.measured == {"output_tok_s": 400.0, "plain_output_tok_s": 200.0, "output_speed_up": 2.0}


def test_a_rate_of_users_whose_number_is_unknown_is_not_simulated(tmp_path: Path) -> None:
    (row,) = read(tmp_path, {"metric": "output tok/s per user", "value": "50", "batch_or_concurrency": ""})
    assert row.setting is None
    assert "batch_or_concurrency has none" in row.reason


def test_an_accepted_length_without_the_bonus_token_is_one_more(tmp_path: Path) -> None:
    length = LENGTH | {"metric": "mean accepted length (excl. bonus)", "value": "1.1"}
    row, own = read(tmp_path, tpot(2, 3.5), length)
    assert length_of(row.setting) == pytest.approx(2.1)
    assert own.measured == pytest.approx({"acceptance_length": 2.1})


def test_the_reported_ratio_is_the_speed_up_where_there_is_no_baseline(tmp_path: Path) -> None:
    alone = {"metric": "output tok/s", "value": "200", "ratio_as_reported": "1.6x"}
    beside = alone | {"baseline_value": "100"}
    one, other = read(tmp_path, alone, beside)
    assert one.measured == {"output_tok_s": 200.0, "output_speed_up": 1.6}
    assert one.plain is not None  # and so the speed-up is predicted
    assert other.measured["output_speed_up"] == 2.0


# --- which rows belong together ---------------------------------------------------------------------------------------


def plain_tpot(rows: list[dict[str, str]], tmp_path: Path) -> float | None:
    """Return the baseline that is found for the last of the rows."""
    return read(tmp_path, *rows)[-1].measured.get("plain_tpot_mean_ms")


@pytest.mark.parametrize(
    ("column", "mine", "other"),
    [
        ("gpu", "H100", "A100"),
        ("tp", "1", "2"),
        ("engine_version", "0.14.0", "0.9.1"),
        ("engine", "vLLM 0.14.0", "vLLM 0.9.1"),
        ("dataset", "MT-Bench", "ShareGPT"),
    ],
)
def test_a_baseline_is_that_of_the_same_server_and_dataset(tmp_path: Path, column: str, mine: str, other: str) -> None:
    own = VANILLA | {"value": "7", column: mine}
    foreign = VANILLA | {"value": "9", column: other}
    speculating = tpot(2, 3.5, baseline_value="", **{column: mine})
    assert plain_tpot([own, foreign, speculating], tmp_path) == 7.0
    assert plain_tpot([foreign, speculating], tmp_path) is None


def test_a_baseline_that_says_less_is_taken_if_there_is_one_alone(tmp_path: Path) -> None:
    unstated = VANILLA | {"value": "7", "gpu": "not stated", "dataset": ""}
    speculating = tpot(2, 3.5, baseline_value="")
    assert plain_tpot([unstated, speculating], tmp_path) == 7.0
    assert plain_tpot([unstated, unstated | {"value": "9", "dataset": "MT-Bench (80)"}, speculating], tmp_path) is None


def test_an_acceptance_length_may_be_of_another_server_and_of_no_other_dataset(tmp_path: Path) -> None:
    """The acceptance of drafts depends on the text, not on the GPU."""
    elsewhere = LENGTH | {"value": "2.3", "gpu": "A100"}
    row = read(tmp_path, elsewhere, tpot(2, 3.5))[1]
    assert length_of(row.setting) == pytest.approx(2.3)
    assert any("with the same drafts on another server" in text for text in row.assumptions)
    both = read(tmp_path, elsewhere, LENGTH | {"value": "2.1"}, tpot(2, 3.5))[2]
    assert length_of(both.setting) == pytest.approx(2.1)
    other_text = read(tmp_path, elsewhere | {"dataset": "ShareGPT"}, tpot(2, 3.5))[1]
    assert any("shipped table" in text for text in other_text.assumptions)


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen3-32B", "qwen3-32b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b-fp8"),
        ("Qwen3-32B-FP8-dynamic", "qwen3-32b-fp8-dynamic"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "meta-llama-3.1-8b-instruct-quantized.w8a8"),
        ("Qwen3-32B-AWQ", "qwen3-32b-awq"),
        ("Qwen3-32B-int8", "qwen3-32b-int8"),
    ],
)
def test_the_ending_of_a_model_says_how_its_weights_are_stored(tmp_path: Path, model: str, name: str) -> None:
    (row,) = read(tmp_path, {"metric": "acceptance length", "value": "2.1", "model": model})
    assert row.setting is not None
    assert (row.setting.model, row.setting.weights) == (name, "auto")


def test_quantised_targets_and_drafters_are_simulated_as_such(tmp_path: Path) -> None:
    """Decoding reads the weights: half of the bytes take little more than half of the time."""
    plain, quantised = (VANILLA | {"value": "20", "model": f"Qwen3-32B{ending}"} for ending in ("", "-FP8"))
    full, half = (entry.predicted for entry in compare(read(tmp_path, plain, quantised), jobs=1))
    assert full is not None and half is not None
    assert 0.5 < half.metrics["tpot_mean_ms"] / full.metrics["tpot_mean_ms"] < 0.7
    small = tpot(2, 15, model="Qwen3-32B", draft_or_method="Qwen3-1.7B-FP8")
    row, _ = read(tmp_path, small, small | {"metric": "acceptance length", "value": "2.1"})
    assert row.setting is not None and isinstance(row.setting.speculation, DraftModel)
    assert row.setting.speculation.model == "qwen3-1.7b-fp8"


def test_a_format_before_the_name_counts_and_an_ending_that_says_otherwise_is_named(tmp_path: Path) -> None:
    (row,) = read(tmp_path, {"metric": "acceptance length", "value": "2.1", "model": "FP8 Llama-3.1-8B-AWQ"})
    assert row.setting is not None
    assert (row.setting.model, row.setting.weights) == ("llama-3.1-8b", "fp8")
    assert "weights: fp8, as stated before the name; the ending of llama-3.1-8b-awq is ignored" in row.assumptions


@pytest.mark.parametrize(
    ("engine", "version", "asynchronous", "host"),
    [
        ("vLLM", "0.7.3", False, "vllm-v0"),
        ("vLLM", "v0.7.3", False, "vllm-v0"),
        ("vLLM v0.6.1", "", False, "vllm-v0"),
        ("vLLM V0", "", False, "vllm-v0"),
        ("vLLM V1", "0.7.3", False, "vllm"),
        ("vLLM 0.13.0", "", False, "vllm"),
        ("vLLM 0.14.1", "", True, "vllm"),
        ("vLLM V1", "v0.15", True, "vllm"),
        ("vLLM", "1.0", True, "vllm"),
        ("vLLM V1 (Apr 2025)", "", False, "vllm"),
    ],
)
def test_the_version_is_read_from_both_columns(
    tmp_path: Path, engine: str, version: str, asynchronous: bool, host: str
) -> None:
    (row,) = read(tmp_path, tpot(2, 3.5, engine=engine, engine_version=version))
    assert row.setting is not None
    assert (row.setting.async_scheduling, row.setting.host) == (asynchronous, host)


@pytest.mark.parametrize(("method", "asynchronous"), [("EAGLE-3", True), ("n-gram", False)])
def test_drafts_of_the_cpu_are_scheduled_synchronously(tmp_path: Path, method: str, asynchronous: bool) -> None:
    """As vLLM does, and without drafts it does not."""
    (row,) = read(tmp_path, tpot(2, 3.5, engine_version="0.15.0", draft_or_method=method))
    assert row.setting is not None and row.plain is not None
    assert (row.setting.async_scheduling, row.plain.async_scheduling) == (asynchronous, True)
    said = any("ngram: without asynchronous scheduling" in text for text in row.assumptions)
    assert said != asynchronous


def test_ngram_rows_are_told(tmp_path: Path) -> None:
    (row,) = read(tmp_path, {"draft_or_method": "n-gram", "metric": "tokens per step incl. bonus", "value": "1.4"})
    assert row.setting is not None
    assert isinstance(row.setting.speculation, Ngram)


def test_lengths_of_a_dataset_that_is_not_known_are_assumed_and_said(tmp_path: Path) -> None:
    known, other = read(tmp_path, tpot(2, 3.5, dataset="ShareGPT (310)"), tpot(2, 3.5, dataset="a new one"))
    assert any("ShareGPT of 161 + 338 tokens" in text for text in known.assumptions)
    assert any("a new one taken to be as long as MT-Bench" in text for text in other.assumptions)


# --- acceptance -------------------------------------------------------------------------------------------------------


def test_the_match_rate_of_an_ngram_table_counts(tmp_path: Path) -> None:
    (row,) = read(tmp_path, tpot(3, 3.5, draft_or_method="n-gram", dataset="vdaita/edit_5k_char (edits of code)"))
    assert row.setting is not None and isinstance(row.setting.speculation, Ngram)
    assert row.setting.speculation.match_rate == 0.5474


def test_a_measured_length_of_ngram_says_nothing_of_how_often_drafts_are_found(tmp_path: Path) -> None:
    own = {"draft_or_method": "n-gram"}
    row, _ = read(tmp_path, tpot(2, 3.5, **own), LENGTH | own | {"value": "2.1"})
    assert "n-gram: drafts in every step, since the share of steps with drafts is not known" in row.assumptions


def test_more_mtp_drafts_than_the_table_has_need_a_length_of_their_own(tmp_path: Path) -> None:
    deepseek = {"model": "DeepSeek-V3", "gpu": "H200", "tp": "8", "draft_or_method": "MTP", "k": "3"}
    row, _ = read(tmp_path, tpot(3, 12) | deepseek, LENGTH | deepseek | {"value": "2.4"})
    assert length_of(row.setting) == pytest.approx(2.4)
    (found,) = compare([row], jobs=1)
    assert found.predicted is not None
    assert found.predicted.metrics["acceptance_length"] == pytest.approx(2.4, abs=0.05)
    (without,) = read(tmp_path, tpot(3, 12) | deepseek)
    assert without.reason == "shipped table mtp-deepseek-v3-low ends at draft 1, and no row has an acceptance length"


def test_an_acceptance_length_alone_is_simulated_in_one_batch(tmp_path: Path) -> None:
    (row,) = read(tmp_path, LENGTH | {"value": "2.4"})
    assert row.setting is not None
    assert (row.setting.load.requests, row.setting.load.concurrency, row.steady) == (256, None, True)
