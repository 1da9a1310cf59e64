"""The CSV on disk: whole, or as it was."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cost_models import CostModelError
from cost_models.calibration.schema import COLUMNS, check_header, format_row, parse_row
from cost_models.profiling.output import check_writable, write_rows

ROW = format_row({"gpu": "A, B", "operator": "p2p", "bytes": 64, "latency_us": 9.5, "source": 'copy "x"'})


def test_what_is_written_is_what_the_schema_reads(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    write_rows(path, [ROW])
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert reader.fieldnames == list(COLUMNS)
    check_header(reader.fieldnames, "gpu.csv")
    (row,) = (parse_row(row, "gpu.csv:2") for row in rows)
    assert row == {"gpu": "A, B", "operator": "p2p", "bytes": 64, "latency_us": 9.5, "source": 'copy "x"'}
    assert [each.name for each in tmp_path.iterdir()] == ["gpu.csv"]


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("old")

    def rows() -> object:
        yield ROW
        assert path.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(path, rows())  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["gpu.csv"]
    write_rows(path, [ROW])
    assert path.read_text().startswith("gpu,operator,dtype,")


def test_places_that_cannot_be_written_are_named_before(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="is a folder; give the name of a CSV file"):
        check_writable(tmp_path)
    with pytest.raises(CostModelError, match="no file can be created in"):
        check_writable(tmp_path / "missing" / "gpu.csv")
    check_writable(tmp_path / "gpu.csv")
    with pytest.raises(CostModelError, match=r"gpu\.csv: could not be written: No such file or directory"):
        write_rows(tmp_path / "missing" / "gpu.csv", [ROW])
