"""Measured rows of speculative decoding: their reading, and the verdict on them."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from cost_models import HostModel
from simulator.errors import InputError
from simulator.scenario.lengths import Quantiles
from simulator.scenario.speculation import Eagle, Eagle3
from simulator.speculation.expectation import expected_tokens
from simulator.speculation.tables import load_table
from simulator.validation.errors import Compared, summed_up
from simulator.validation.host_samples import observe
from simulator.validation.measured import read_rows
from simulator.validation.replay import Predicted
from simulator.validation.report import print_report
from simulator.validation.run import compare
from simulator.validation.setting import Row
from simulator.validation.speculation.acceptance import geometric, has_source, shipped

COLUMNS = (
    "source",
    "gpu",
    "tp",
    "engine",
    "engine_version",
    "model",
    "draft_or_method",
    "k",
    "dataset",
    "batch_or_concurrency",
    "metric",
    "value",
    "unit",
    "baseline_value",
    "ratio_as_reported",
    "provenance",
)
ISSUE = {
    "source": "an issue",
    "gpu": "H100 (inferred)",
    "tp": "1.0",
    "engine": "vLLM V1",
    "model": "Llama-3.1-8B-Instruct",
    "draft_or_method": "EAGLE-3 yuhuili/EAGLE3",
    "k": "2",
    "dataset": "MT-Bench (80)",
    "batch_or_concurrency": "1",
    "provenance": "vllm-project/vllm issue #99999",
}
LABEL = {
    "source": "AccelMark",
    "gpu": "NVIDIA H100 80GB HBM3",
    "engine": "vLLM",
    "engine_version": "0.7.3",
    "draft_or_method": "yuhuili/EAGLE-LLaMA3.1",
    "k": "4",
    "batch_or_concurrency": "8 (client label; engine batches freely)",
    "metric": "output tok/s with speculation",
    "provenance": "github FreedomIntelligence/AccelMark results/x_suite_A_y/result.json",
}


def read(tmp_path: Path, *rows: dict[str, str]) -> list[Row]:
    """Return rows that differ from `ISSUE` in the given columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(ISSUE | row for row in rows)
    path = tmp_path / "measured.csv"
    path.write_text(text.getvalue(), encoding="utf-8")
    return read_rows(path)


def tpot(k: int, value: float, **cells: str) -> dict[str, str]:
    return {"k": str(k), "metric": "TPOT", "value": str(value), "baseline_value": "7.0"} | cells


def predicted(row: Row, **metrics: float) -> Compared:
    return Compared(row, Predicted(metrics, False, 1.0, 76.0, 207.0))


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_row_says_what_speculated_and_what_was_measured_with_and_without(tmp_path: Path) -> None:
    (row,) = read(tmp_path, tpot(3, 3.5))
    setting = row.setting
    assert setting is not None
    assert (setting.model, setting.gpu, setting.tensor_parallel) == ("llama-3.1-8b", "h100-sxm", 1)
    assert (setting.load.concurrency, setting.load.requests, setting.load.warmup) == (1, 81, 1)
    assert isinstance(setting.speculation, Eagle3)
    assert setting.speculation.num_speculative_tokens == 3
    assert row.measured == {"tpot_mean_ms": 3.5, "plain_tpot_mean_ms": 7.0, "tpot_speed_up": 2.0}
    assert row.labels["method"] == "eagle3"
    assert "GPU: H100 (inferred)" in row.assumptions


def test_acceptance_is_that_of_the_same_run_where_the_file_has_it(tmp_path: Path) -> None:
    length = {"k": "2", "metric": "mean acceptance length (incl. bonus)", "value": "2.30"}
    other = {"k": "3", "metric": "mean acceptance length (incl. bonus)", "value": "2.70"}
    rows = read(tmp_path, tpot(2, 3.5), length, other, tpot(3, 3.5), tpot(4, 3.6))
    lengths = [1 + sum(row.setting.speculation.acceptance.cumulative) for row in rows]  # type: ignore[union-attr]
    assert lengths[0] == pytest.approx(2.30)
    assert lengths[3] == pytest.approx(2.70)
    table = load_table("eagle3-llama-3.1-8b-mtbench")
    assert lengths[4] == pytest.approx(expected_tokens(table.cumulative[:4]))
    assert lengths[1] == pytest.approx(expected_tokens(table.cumulative[:2]))  # a prediction: not its own value


def test_a_table_that_was_made_from_a_row_predicts_nothing_of_it(tmp_path: Path) -> None:
    length = {"metric": "mean acceptance length", "value": "2.36"}
    foreign, own = read(tmp_path, length, length | {"provenance": "vllm-project/vllm issue #20780 (2025-07-10)"})
    assert foreign.given == ()
    assert own.given == ("acceptance_length",)


def test_a_speed_up_beside_an_acceptance_length_is_predicted_with_it(tmp_path: Path) -> None:
    """`1.83 (of 4)` and `1.26x tps/user`: the length is given then."""
    row = {"metric": "average acceptance length", "value": "1.83 (of 4)", "k": "4", "gpu": "H200", "tp": "8"}
    row |= {"model": "BF16 Llama-3.3-70B + public EAGLE3", "ratio_as_reported": "1.26x tps/user"}
    (found,) = read(tmp_path, row | {"engine": "TensorRT-LLM (Jun 2025)", "batch_or_concurrency": "4"})
    assert found.measured == {"acceptance_length": 1.83, "tpot_speed_up": 1.26}
    assert found.given == ("acceptance_length",)
    assert found.setting is not None
    assert (found.setting.model, found.setting.weights, found.setting.engine) == (
        "llama-3.1-70b",
        "bf16",
        "tensorrt_llm",
    )
    assert found.plain is not None
    assert (found.plain.engine, found.plain.speculation) == ("tensorrt_llm", None)


def test_sglang_speculates_with_fewer_sequences_and_without_overlap(tmp_path: Path) -> None:
    cells = LABEL | {"engine": "SGLang", "engine_version": "0.5.6", "value": "800", "baseline_value": "1600"}
    (row,) = read(tmp_path, cells)
    assert row.setting is not None and row.plain is not None
    assert (row.setting.engine, row.setting.max_num_seqs, row.setting.async_scheduling) == ("sglang", 48, False)
    assert (row.plain.engine, row.plain.max_num_seqs, row.plain.async_scheduling) == ("sglang", 512, True)


def test_a_row_without_speculation_is_the_baseline_of_others(tmp_path: Path) -> None:
    plain = {"draft_or_method": "vanilla", "k": "0", "metric": "est. output tok/s", "value": "120"}
    rate = {"k": "2", "metric": "est. output tok/s", "value": "180"}
    first, second = read(tmp_path, plain, rate)
    assert first.setting is not None and first.setting.speculation is None
    assert first.measured == {"output_tok_s": 120.0}
    assert second.measured == {"output_tok_s": 180.0, "plain_output_tok_s": 120.0, "output_speed_up": 1.5}


def test_a_rate_of_decodes_is_a_time_between_tokens(tmp_path: Path) -> None:
    (row,) = read(
        tmp_path, {"metric": "decode tok/s", "value": "400", "baseline_value": "200", "batch_or_concurrency": "2"}
    )
    assert row.measured == {"tpot_mean_ms": 5.0, "plain_tpot_mean_ms": 10.0, "tpot_speed_up": 2.0}


def test_a_speed_up_alone_is_a_metric(tmp_path: Path) -> None:
    (row,) = read(tmp_path, {"metric": "speedup vs. autoregressive", "value": "2.1x"})
    assert row.measured == {"tpot_speed_up": 2.1}
    assert row.plain is not None
    text = io.StringIO()
    print_report([predicted(row, tpot_speed_up=2.0)], text)
    assert re.search(r"speed-up +2.1 +2 +-4.8", text.getvalue())


@pytest.mark.parametrize(("k", "fitted"), [(2, True), (3, False), (7, True)])
def test_rows_that_the_host_was_fitted_to_are_given(tmp_path: Path, k: int, fitted: bool) -> None:
    (row,) = read(tmp_path, tpot(k, 3.5, provenance="vllm-project/vllm issue #20780"))
    assert row.given == (("tpot_mean_ms", "tpot_speed_up") if fitted else ())


def test_rows_with_a_clients_label_are_offline_runs_of_their_suite(tmp_path: Path) -> None:
    (row,) = read(tmp_path, LABEL | {"value": "800", "baseline_value": "1600"})
    assert row.by_sign
    setting = row.setting
    assert setting is not None
    assert isinstance(setting.speculation, Eagle)
    assert (setting.load.requests, setting.load.concurrency, setting.load.rate) == (100, None, None)
    assert isinstance(setting.prompt_tokens, Quantiles) and isinstance(setting.output_tokens, Quantiles)
    assert dict(setting.prompt_tokens.points)[0.5] == 168
    assert setting.output_tokens.max == 512
    assert not setting.async_scheduling  # vLLM 0.7 is V0


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"metric": "num_drafts", "value": "4816"}, "metric 'num_drafts' is not compared"),
        ({"metric": "p99 TPOT"}, "metric 'p99 TPOT' is not compared"),
        ({"metric": "output throughput gain"}, "metric 'output throughput gain' is not compared"),
        ({"unit": "furlongs"}, "unit 'furlongs' of TPOT is not read"),
        ({"value": "10-21%"}, "value '10-21%' is no number above 0"),
        ({"k": "2-3 best"}, "k '2-3 best' is no number of drafts"),
        ({"draft_or_method": "SGLang EAGLE steps5 topk8 draft64"}, "acceptance of a tree"),
        ({"draft_or_method": "a-model-nobody-knows"}, "unknown model"),
        ({"draft_or_method": "medusa"}, "no shipped table has the acceptance of medusa with llama-3.1-8b"),
        ({"k": "9"}, "shipped table eagle3-llama-3.1-8b-mtbench ends at draft 7"),
        ({"gpu": "NVIDIA H20-3e"}, "unknown GPU"),
        ({"engine": "HF EAGLE"}, "unknown engine 'HF EAGLE'"),
        ({"batch_or_concurrency": "up to 200"}, "'up to 200' is no number of clients"),
        (LABEL | {"metric": "output tok/s", "provenance": "elsewhere"}, "the requests of an offline run of that kind"),
    ],
)
def test_a_row_that_is_not_simulated_says_why(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    (row,) = read(tmp_path, tpot(2, 3.5) | cells)
    assert row.setting is None
    assert reason in row.reason


def test_an_impossible_acceptance_length_is_a_reason(tmp_path: Path) -> None:
    row, _ = read(tmp_path, tpot(2, 3.5), {"metric": "acceptance length", "value": "3.5"})
    assert row.reason == "a step of 2 drafts produces 1 to 3 tokens, not 3.5"


def test_a_gpu_that_is_not_stated_is_assumed_and_not_summed_up(tmp_path: Path) -> None:
    (row,) = read(tmp_path, tpot(2, 3.5, gpu="not stated in excerpt"))
    assert row.note == "the GPU is not stated"
    assert "GPU not stated: H100" in row.assumptions


def test_a_mistake_names_file_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"measured.csv:2: tp: expected a whole number from 1 to"):
        read(tmp_path, tpot(2, 3.5, tp="1.5"))


def test_every_row_of_the_reference_data_is_simulated_or_says_why(shared: Path) -> None:
    rows = read_rows(shared / "truth" / "spec_decode.csv")
    assert len(rows) == 95
    assert all((row.setting is None) == bool(row.reason) for row in rows)
    assert sum(row.setting is not None for row in rows) >= 80


# --- acceptance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "drafts"), [(1.0, 4), (2.47, 7), (3.54, 7), (5.0, 4)])
def test_geometric_rates_have_the_length(length: float, drafts: int) -> None:
    rates = geometric(length, drafts)
    assert len(rates) == drafts
    assert expected_tokens(rates) == pytest.approx(length)
    assert all(earlier >= later for earlier, later in pairwise(rates))


def test_the_shipped_table_is_that_of_the_dataset_else_the_default() -> None:
    def name(method: str, dataset: str) -> str:
        table = shipped(method, "llama-3.1-8b", dataset)
        assert table is not None
        return table.name

    assert name("ngram", "gsm8k (300 requests)") == "ngram-llama-3.1-8b-gsm8k"
    assert name("eagle3", "MT-Bench 80 prompts") == "eagle3-llama-3.1-8b-mtbench"  # the default of three
    assert name("eagle3", "a new one") == "eagle3-llama-3.1-8b-mtbench"
    assert shipped("medusa", "llama-3.1-8b", "gsm8k") is None


def test_a_source_is_told_by_its_number_or_its_repository() -> None:
    table = load_table("eagle3-llama-3.1-8b-mtbench")  # vllm issue 20780
    assert has_source(table, "vllm-project/vllm issue #20780 (author)")
    assert not has_source(table, "vllm-project/vllm issue #2078")
    assert not has_source(table, "vllm-project/vllm PR #16937")
    ngram = load_table("ngram-llama-3.1-8b-gsm8k")
    assert has_source(ngram, "github SpecDecode-Bench/simulator@2fdccbd data/x.jsonl")


# --- simulating -------------------------------------------------------------------------------------------------------


def test_a_row_is_simulated_with_and_without_drafts(tmp_path: Path) -> None:
    """Simulated values as measured ones have no errors; the acceptance length is that of the row, within the noise."""
    length = {"metric": "acceptance length", "value": "2.1", "k": "2"}
    row, _ = read(tmp_path, tpot(2, 3.5), length)
    (found,) = compare([row], jobs=1)
    assert found.predicted is not None
    metrics = found.predicted.metrics
    assert metrics["acceptance_length"] == pytest.approx(2.1, abs=0.05)
    assert metrics["tpot_speed_up"] == pytest.approx(metrics["plain_tpot_mean_ms"] / metrics["tpot_mean_ms"])
    assert 1.2 < metrics["tpot_speed_up"] < 2.1
    exact = replace(row, measured={name: metrics[name] for name in row.measured})
    summary = summed_up(compare([exact], jobs=1))["all"]
    assert {name: entry["p90_ape"] for name, entry in summary.items()} == dict.fromkeys(row.measured, 0.0)


def test_rows_that_speculate_say_nothing_of_the_host(tmp_path: Path) -> None:
    (row,) = read(tmp_path, tpot(2, 3.5))
    assert observe(row, Predicted({"itl_mean_ms": 4.0}, False, 1.0, 76.0, 207.0), HostModel()) is None
