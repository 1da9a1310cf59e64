"""Measured runs simulated again, from Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import simulator
from simulator.cli import main
from tests.helpers import bench_serve_result

HEADER = (
    "gpu,tp,model,weight_dtype,request_rate,duration_s,input_tokens_mean,output_tokens,ttft_mean_ms,itl_mean_ms,note"
)
ROWS = (
    "H100,1,meta-llama/Llama-3.1-8B-Instruct,FP16,4,10,500,20,25,7.5,",
    "H100,1,meta-llama/Llama-3.1-8B-Instruct,FP16,6,10,500,20,27,8,a pause of the server",
)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text("\n".join([HEADER, *ROWS]) + "\n")
    return path


def test_what_was_measured_stands_beside_what_is_predicted(
    measured: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = simulator.validate(measured, seeds=1, out=tmp_path / "out")
    rows = found.rows
    assert list(rows.metric) == ["ttft_mean_ms", "itl_mean_ms"] * 2
    assert list(rows.measured) == [25, 7.5, 27, 8]
    assert np.allclose(rows.error, rows.predicted / rows.measured - 1)
    assert [bool(text) for text in rows.left_out] == [False, False, True, True]
    assert main(["validate", str(measured), "--seeds", "1", "--jobs", "1", "--json"]) == 0
    assert found.document == json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "validation.csv",
        "validation.json",
        "validation.png",
    ]
    assert len(repr(found)) < 200 and "2 of 2 rows simulated" in repr(found)
    assert "ttft_mean_ms" in found._repr_html_()


def test_a_benchmark_is_described_by_parameters(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    record = simulator.run("quickstart", {"workload.limit": 60}).record
    path.write_text(json.dumps(bench_serve_result(record, "meta-llama/Llama-3.1-8B-Instruct", 5.5)))
    found = simulator.validate([path], gpu="h100-sxm", settings={"enable_prefix_caching": False}, seeds=1)
    assert found.rows.predicted.notna().any()


def test_mistakes_are_one_line(measured: Path, tmp_path: Path) -> None:
    with pytest.raises(simulator.InputError, match=r"none\.csv"):
        simulator.validate(tmp_path / "none.csv")
    with pytest.raises(simulator.InputError, match="seeds: expected a whole number of at least 1, found 0"):
        simulator.validate(measured, seeds=0)
    with pytest.raises(simulator.InputError, match="settings: 'weigths' is not known; did you mean weights"):
        simulator.validate(measured, settings={"weigths": "fp8"})
    with pytest.raises(simulator.InputError, match="exists and is not a folder"):
        simulator.validate(measured, out=measured)
