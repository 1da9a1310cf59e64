"""The folder of a comparison: the results directory of each design, and checks before it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cost_models.files.documents import read_json
from simulator.comparison.designs import Design
from simulator.errors import InputError
from simulator.results.provenance import REPLACE, check_same_scenario
from simulator.results.store import check_target

DOCUMENT, LATENCY, ATTRIBUTION = "compare.json", "latency.png", "attribution.png"
_FILES = (DOCUMENT, LATENCY, ATTRIBUTION)


def folder_of(design: Design, out: Path) -> Path:
    """Return the results directory of a design in `out`: its name, with characters unfit for a file name replaced."""
    return out / (re.sub(r"[^\w.-]+", "-", design.name).strip(".") or "design")


def check_folder(out: Path, designs: Sequence[Design], force: bool = False) -> None:
    """Verify, before the simulation, that a comparison can be written to `out`.

    Raises:
        InputError: it is a file, it holds files other than those of a comparison, two designs would share a folder, or,
            unless `force`, it holds a comparison of other scenarios.
    """
    folders = [folder_of(design, out) for design in designs]
    for folder in folders:
        if folders.count(folder) > 1 or folder.name in _FILES:
            raise InputError(f"{folder}: is needed twice; give the designs names that differ in letters or digits")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; a comparison needs a folder")
    for entry in sorted(out.iterdir()) if out.is_dir() else ():
        if entry.name not in _FILES and not (entry / "summary.json").is_file():
            raise InputError(f"{out}: holds {entry.name}, which is not part of a comparison; choose another folder")
    if not force:
        _check_designs(out, designs)
    for design, folder in zip(designs, folders, strict=True):
        check_target(folder)
        if not force:
            check_same_scenario(folder, design.scenario)


def _check_designs(out: Path, designs: Sequence[Design]) -> None:
    """Verify that a comparison in `out`, if there is one, is of designs with the same names."""
    if not (out / DOCUMENT).is_file():
        return
    document: Any = read_json(out / DOCUMENT)
    names = list(document["designs"]) if isinstance(document, dict) and "designs" in document else []
    if sorted(names) != sorted(design.name for design in designs):
        raise InputError(f"{out}: holds a comparison of {', '.join(names) or 'something else'}; {REPLACE}")
