"""The notebooks run from top to bottom, and are kept without their outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells_of(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpl.use("agg")
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells_of(path)):
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
    assert capsys.readouterr().out
    names["plt"].close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    assert cells_of(path)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells_of(path))
