"""Fits of a GPU's kernels to measurements, and their errors on shapes that were held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cost_models
from cost_models.files.user_files import own_folder
from simulator.errors import InputError

#: Folder of the shipped calibrations.
SHIPPED = Path(cost_models.__file__).resolve().parent / "calibrated"


def own_calibrations() -> Path:
    """Return the user's own folder of calibrations, in which runs find them by the name of the GPU."""
    return own_folder() / "calibrated"


def calibrate_gpu(gpu: str, sources: Sequence[str], out: Path) -> tuple[Path, Any]:
    """Calibrate `gpu` and write the file to the folder `out`. Return the file's path and the `Calibration`.

    Operators that the sources do not measure are kept from the existing file, or else from the shipped one.

    Raises:
        InputError: the existing file is no calibration.
        CostModelError: see `calibrate`.
    """
    from cost_models.calibration.calibrate import calibrate, calibrated_name, write_calibrated

    name = calibrated_name(gpu)
    target = out / f"{name}.json"
    found = calibrate(gpu, sources, _before(target, SHIPPED / target.name))
    write_calibrated(found.document, target)
    return target, found


def print_calibration(calibration: Any) -> None:
    """Print a row for each operator and format: counts of rows, reasons of dropped ones, errors on held-out shapes."""
    from simulator.common.console import Screen, numbers_table

    document = calibration.document
    headings = ("of", "shapes", "dropped", "judged on", "rows", "median", "p90", "bias")
    table = numbers_table(f"{document['gpu']}: held-out errors", headings, width=30)
    for operator, groups in document["operators"].items():
        for group, entry in groups.items():
            for row in _rows(operator, group, entry):
                table.add_row(*row)
    screen = Screen(width=150)
    screen.print(table)
    for kept in calibration.kept:
        screen.print(f"{kept.operator} {kept.group}: not fitted, kept as it was: {kept.reason}")


def _rows(operator: str, group: str, entry: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a line for each group of shapes; the first one names the operator and the format."""
    dropped = "; ".join(f"{count:,} {reason}" for reason, count in entry["dropped"].items()) or "none"
    first: tuple[str, ...] = (operator, group, f"{entry['rows']:,}", dropped)
    rows = []
    for name, errors in entry["held_out_errors"].items():
        sizes = (f"{errors['median_pct']:.1f}%", f"{errors['p90_pct']:.1f}%", f"{errors['bias_pct']:+.1f}%")
        rows.append((*first, name, f"{errors['rows']:,}", *sizes))
        first = ("", "", "", "")
    return rows or [(*first, "nothing held out", "", "", "", "")]


def _before(*paths: Path) -> dict[str, Any] | None:
    """Return the contents of the first calibrated file that exists, None if there is none."""
    for path in paths:
        if path.is_file():
            try:
                found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                found["operators"].items()
            except (AttributeError, KeyError, TypeError, ValueError):
                raise InputError(f"{path}: not a calibrated file; move it away, or choose another --out") from None
            return found
    return None
