"""The verdict on measured rows of speculative decoding, and its text."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.validation.errors import Compared, summed_up
from simulator.validation.report import document, print_report
from simulator.validation.speculation.verdict import best_drafts, order_counts, sign_counts
from tests.study.test_validation_speculation import LABEL, predicted, read, tpot


def test_the_best_number_of_drafts_costs_what_was_measured_with_it(tmp_path: Path) -> None:
    """Measured 3.6, 3.5, 3.7 ms with 2, 3 and 4 drafts; if 4 are predicted to be best, that costs 3.7 / 3.5."""
    rows = read(tmp_path, tpot(2, 3.6), tpot(3, 3.5), tpot(4, 3.7))
    compared = [predicted(row, tpot_mean_ms=ms) for row, ms in zip(rows, (3.9, 3.8, 3.7), strict=True)]
    (best,) = best_drafts(compared)
    assert (best.measured, best.predicted) == (3, 4)
    assert best.loss == pytest.approx(3.7 / 3.5 - 1)
    assert best_drafts(compared[:1]) == []


def test_the_sign_of_a_speed_up_is_counted_and_about_equal_stands_apart(tmp_path: Path) -> None:
    rows = read(tmp_path, tpot(2, 3.5), tpot(3, 14.0), tpot(4, 7.1), tpot(5, 5.0))
    compared = [predicted(row, tpot_speed_up=up) for row, up in zip(rows, (1.8, 1.2, 1.2, 0.9), strict=True)]
    assert sign_counts(compared) == {"rows": 3, "same_sign": 1, "about_equal": 1, "predicted_about_equal": 0}


def test_order_is_that_of_pairs_which_differ_measurably(tmp_path: Path) -> None:
    values = (("A100", 1000, 2000), ("A100-SXM4-40GB", 1010, 2000), ("H100", 2000, 8000), ("H100", 4000, 8000))
    rows = read(
        tmp_path, *(LABEL | {"gpu": gpu, "value": str(own), "baseline_value": str(base)} for gpu, own, base in values)
    )
    compared = [
        predicted(row, output_tok_s=rate, output_speed_up=up)
        for row, rate, up in zip(rows[:3], (900, 950, 1500), (0.4, 0.6, 0.5), strict=True)
    ]
    assert order_counts(compared) == {
        "output rates of one engine": {"pairs": 2, "same_order": 2},
        "output rates between engines": {"pairs": 0, "same_order": 0},
        "speed-ups of one engine": {"pairs": 2, "same_order": 1},
        "speed-ups between engines": {"pairs": 0, "same_order": 0},
    }
    # The two rows of one setting are one run to the simulation.
    alike = order_counts([predicted(row, output_tok_s=1.0) for row in rows[2:]])
    assert alike["output rates of one engine"]["pairs"] == 0
    assert summed_up(compared) == {"all": {}}  # these rows are compared by sign and order only
    assert compared[0].left_out.startswith("judged by sign and order")


def test_what_is_given_is_shown_and_not_summed_up(tmp_path: Path) -> None:
    own = {"provenance": "vllm-project/vllm issue #20780", "metric": "acceptance length", "value": "2.36"}
    (row,) = read(tmp_path, own)
    compared = [predicted(row, acceptance_length=2.40)]
    assert summed_up(compared) == {"all": {}}
    text = io.StringIO()
    print_report(compared, text)
    assert "given, not predicted, 1 row: acceptance_length" in text.getvalue()
    assert re.search(r"length +2.36 +2.4 +\(\+1.7\)", text.getvalue())


def test_the_report_has_the_best_number_of_drafts_and_the_signs(tmp_path: Path) -> None:
    rows = read(tmp_path, tpot(2, 3.6), tpot(3, 3.5))
    compared = [
        predicted(row, tpot_mean_ms=ms, plain_tpot_mean_ms=7.5, tpot_speed_up=7.5 / ms)
        for row, ms in zip(rows, (3.9, 3.8), strict=True)
    ]
    text = io.StringIO()
    print_report(compared, text)
    assert "fastest number of drafts" in text.getvalue()
    assert "faster or slower with speculation: as measured in 2 of 2 rows" in text.getvalue()
    found = document(compared)
    assert found["speculation"]["best_drafts"][0]["predicted"] == 3
    plain = [Compared(replace(entry.row, setting=None, reason="x"), None) for entry in compared]
    assert "speculation" not in document(plain)


def test_orders_of_one_engine_and_between_engines_are_counted_separately(tmp_path: Path) -> None:
    sglang = {"engine": "SGLang", "engine_version": "0.5.6", "baseline_value": "2000"}
    rows = read(
        tmp_path,
        LABEL | {"value": "1000", "baseline_value": "2000", "gpu": "A100"},
        LABEL | {"value": "3000", "baseline_value": "2000"},
        LABEL | sglang | {"value": "500"},
        LABEL | sglang | {"value": "800", "gpu": "A100"},
    )
    compared = [
        predicted(row, output_tok_s=2000 * up, output_speed_up=up)
        for row, up in zip(rows, (0.4, 1.6, 1.2, 1.4), strict=True)
    ]
    found = document(compared)["speculation"]
    assert (found["sign"]["rows"], found["sign"]["same_sign"]) == (4, 2)
    assert found["order"]["speed-ups of one engine"] == {"pairs": 2, "same_order": 2}
    assert found["order"]["speed-ups between engines"] == {"pairs": 4, "same_order": 2}
    text = io.StringIO()
    print_report(compared, text)
    printed = " ".join(text.getvalue().split())
    assert "faster or slower with speculation: as measured in 2 of 4 rows" in printed
    assert "order of speed-ups between engines: as measured in 2 of 4 pairs of rows" in printed
