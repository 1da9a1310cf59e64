"""Output of `servesim validate`: values side by side, the simulated settings, and the shipped rows."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import main
from simulator.common.shipped import data_root, find_measured, measured_names
from simulator.errors import InputError
from simulator.validation import shipped
from simulator.validation.errors import Compared, summed_up
from simulator.validation.measured import read_rows
from simulator.validation.picture import _error_bars, picture
from simulator.validation.report import check_folder
from simulator.validation.run import compare

HEADER = (
    "gpu,tp,model,request_rate,n_requests,max_num_seqs,input_tokens_mean,output_tokens,ttft_mean_ms,itl_mean_ms,group"
)
ROW = "H100,1,meta-llama/Llama-3.1-8B-Instruct,4,60,128,300,30,25,7.5,"
MEASURED = data_root() / "traces" / "measured"


def table(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def validated(*arguments: str | Path) -> int:
    return main(["validate", *map(str, arguments), "--seeds", "1", "--jobs", "1"])


# --- values, settings, errors -----------------------------------------------------------------------------------------


def test_a_row_is_printed_measured_beside_predicted_with_what_was_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validated(table(tmp_path, ROW)) == 0
    printed = capsys.readouterr().out
    (line,) = [line.split() for line in printed.splitlines() if line.startswith("TTFT mean")]
    unit, measured, predicted, error, percent = line[2:]
    assert (unit, measured) == ("ms", "25")
    assert float(error) == pytest.approx(float(predicted) - 25, abs=0.01)
    assert float(percent) == pytest.approx(100 * (float(predicted) / 25 - 1), abs=0.1)
    assert "vLLM 0.33, asynchronous" in printed and "128 sequences a step" in printed and "KV in BF16" in printed
    assert "sent: 60 requests, Poisson at 4/s, 300 + 30 tokens" in printed
    assert "errors over rows" not in printed


def test_more_rows_have_a_line_each_with_both_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validated(table(tmp_path, *[ROW] * 4)) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("3 llama-3.1-8b tp1 h100 4/s")]
    assert row.split()[5] == "25" and len(row.split()) == 5 + 4 * 2


def test_json_has_every_row_with_its_engine_load_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validated(table(tmp_path, ROW, ROW.replace("H100", "B9000")), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"errors", "overload", "rows"}
    row, other = found["rows"]
    engine = {
        "policy": "vllm",
        "version": "vllm-0.33",
        "async_scheduling": True,
        "max_num_seqs": 128,
        "kv_cache": "bf16",
    }
    assert engine.items() <= row["engine"].items()
    assert row["engine"]["max_num_batched_tokens"] == 8192
    assert row["load"]["arrivals"] == "Poisson at 4/s"
    metric = row["metrics"]["ttft_mean_ms"]
    assert metric["error"] == pytest.approx(metric["predicted"] - 25)
    assert metric["error_percent"] == pytest.approx(100 * (metric["predicted"] / 25 - 1))
    assert "unknown GPU" in other["left_out"] and other["metrics"]["ttft_mean_ms"]["predicted"] is None
    assert found["errors"]["all"]["ttft_mean_ms"]["unit"] == "ms"


def test_rows_name_groups_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, f"{ROW}slow; all of them", f"{ROW}all of them", ROW)
    found = summed_up(compare(read_rows(path), jobs=1))
    assert found["slow"]["itl_mean_ms"]["n"] == 1 and found["all of them"]["itl_mean_ms"]["n"] == 2
    assert validated(path) == 0
    assert "all of them: ITL mean" in capsys.readouterr().out


def test_what_is_given_is_summed_up_apart(tmp_path: Path) -> None:
    (compared,) = compare(read_rows(table(tmp_path, f"{ROW}fit")), jobs=1)
    given = Compared(replace(compared.row, given=("itl_mean_ms",)), compared.predicted)
    found = summed_up([given])
    assert set(found["fit"]) == {"ttft_mean_ms"} and set(found["fit (given)"]) == {"itl_mean_ms"}
    assert "itl_mean_ms" not in found["all"]


@pytest.mark.parametrize("rows", [0, 1, 3, 5])
def test_pictures_of_few_rows_are_bars_and_of_none_a_sentence(tmp_path: Path, rows: int) -> None:
    (compared,) = compare(read_rows(table(tmp_path, ROW)), jobs=1)
    assert picture([compared] * rows).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("errors", "ends"),
    [
        ([201, 4, -33, -3, 7, -1], (-33, 33)),
        ([201, 4], (-12, 12)),
        ([-90, 1, 2, 3, 4], (-12, 12)),
        ([200, 180], (-12, 200)),
        ([-40, -60, 5], (-60, 12)),
        ([1.0], (-12, 12)),
        ([], (-12, 12)),
    ],
)
def test_one_error_far_beyond_the_others_is_cut_and_has_its_number(
    errors: list[float], ends: tuple[float, float]
) -> None:
    from matplotlib.figure import Figure

    panel = Figure().subplots()
    pairs = [(f"ttft_p{at}_ms", 100.0, 100.0 + error) for at, error in enumerate(errors)]
    _error_bars(panel, "a row", pairs)
    low, high = panel.get_xlim()
    assert (low, high) == pytest.approx([1.1 * end for end in ends])
    marks = [text.get_text().strip(" ◀▶") for text in panel.texts if "→" not in text.get_text()]
    assert marks == [f"{error:+.0f}%" for error in errors if not low <= error <= high]


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (ROW.replace("H100", "B9000"), "unknown GPU"),
        (ROW.replace(",300,30,", ",300000,30,"), "no request finished"),
        (ROW.replace(",25,7.5,", ",,,"), "nothing was measured"),
    ],
)
def test_no_row_that_can_be_compared_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, reason: str
) -> None:
    assert validated(table(tmp_path, row)) == 2
    printed = capsys.readouterr()
    assert "no row could be compared" in printed.err and reason in printed.err


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_simulated(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    check_folder(tmp_path / "new" / "deeper")
    for folder in (file, file / "below"):
        with pytest.raises(InputError, match="exists and is not a folder"):
            check_folder(folder)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    try:
        (closed / "probe").touch()
    except PermissionError:
        with pytest.raises(InputError, match="cannot write"):
            check_folder(closed / "new")


@pytest.mark.parametrize("arguments", [["open_loop_vllm.csv"], ["--gpu", "h100-sxm"], ["--leave-one-model-out"]])
def test_all_takes_the_shipped_rows_alone(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--all", *arguments]) == 2
    assert "leave out" in capsys.readouterr().err


# --- what is shipped --------------------------------------------------------------------------------------------------


def test_without_files_the_shipped_ones_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in measured_names())
    assert main(["validate", "--json"]) == 0
    files = {file["name"]: file for file in json.loads(capsys.readouterr().out)}
    assert files["spec_decode.csv"]["rows"] == 95
    assert all(file["part"] for file in files.values())


def test_a_shipped_file_is_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_measured(Path("spec_decode")) == find_measured(Path("spec_decode.csv")) == MEASURED / "spec_decode.csv"
    assert main(["validate", "spec_dekode.csv"]) == 2
    assert "did you mean spec_decode?" in capsys.readouterr().err


def test_every_shipped_row_has_a_source_and_a_licence_and_all_are_small() -> None:
    paths = sorted(MEASURED.iterdir())
    assert sum(path.stat().st_size for path in paths) < 1e6
    for path in paths:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            assert rows and all(row["provenance"] and row["license"] for row in rows), path


@pytest.mark.parametrize("name", measured_names())
def test_shipped_rows_are_the_published_ones(shared: Path, name: str) -> None:
    def rows(path: Path) -> list[dict[str, str]]:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))

    for ours, published in zip(rows(MEASURED / name), rows(shared / "truth" / name), strict=True):
        assert published.items() <= ours.items()


def test_all_prints_and_writes_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ROW.replace("Llama-3.1-8B-Instruct", "Llama-3.2-1B").replace(",7.5,", ",3,")
    path = table(tmp_path, f"{ROW}H100", ROW.replace(",4,60,", ",2,40,") + "H100", f"{other}H100")
    parts = (
        shipped.Part("held", "held out", (str(path),), held_out=True),
        shipped.Part("plain", "as is", (str(path),)),
    )
    monkeypatch.setattr(shipped, "PARTS", parts)
    arguments = ["validate", "--all", "--seeds", "1", "--jobs", "1"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "== held out" in printed and "== as is" in printed and "H100: ITL mean" in printed
    assert "host fitted" in printed and "host vllm" in printed
    found = {part: json.loads((tmp_path / "out" / part / "validation.json").read_text()) for part in ("held", "plain")}
    errors: dict[str, Any] = {part: of["errors"]["H100"]["itl_mean_ms"] for part, of in found.items()}
    assert errors["held"]["n"] == errors["plain"]["n"] == 3
    assert errors["held"]["median_ape"] != errors["plain"]["median_ape"]
    assert main([*arguments, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["held", "plain"]
