"""Printing of comparisons: measured kernels that a calibration uses, against others of the same kind and physics."""

from __future__ import annotations

from typing import Any


def cross_check_gpu(gpu: str) -> tuple[str, list[Any]]:
    """Return the shipped name of `gpu` and its comparisons. Raises CostModelError as `cross_check` does."""
    from cost_models.calibration.calibrate import calibrated_name
    from cost_models.calibration.cross_check import cross_check

    name = calibrated_name(gpu)
    return name, cross_check(name)


def print_comparisons(gpu: str, comparisons: list[Any]) -> None:
    """Print a row for each comparison: the times of the table in use, divided by those of the other."""
    from cost_models.calibration.cross_check import BOUND_FACTOR, FACTOR, LONG_NS
    from simulator.common.console import Screen, numbers_table

    columns = ("of", "taken", "against", "shapes", "short", "shapes", "long", "")
    table = numbers_table("operator", columns)
    for column in table.columns[1:4]:
        column.justify = "left"
    before: tuple[str, ...] = ()
    for found in comparisons:
        first = (found.operator, found.group, found.taken)
        shown = ("", "", "") if first == before else first
        before = first
        cells = [text for ratios in (found.short, found.long) for text in _cells(ratios)]
        table.add_row(*shown, found.place, *cells, "beyond" if found.flagged else "")
    screen = Screen(width=170)
    screen.print(f"{gpu}: times of the tables taken, divided by those of others")
    screen.print(table)
    screen.print(
        f"Median (10th-90th percentile) of the shapes that both have. Short: the physical bound is below "
        f"{LONG_NS / 1000:g} us, long: at least that. Against another GPU: multiples of the physical bound of each. "
        f"Beyond: a median above {FACTOR:g} or below 1/{FACTOR:g}; against the physical bound, above {BOUND_FACTOR:g}."
    )


def _cells(ratios: Any) -> tuple[str, str]:
    if ratios is None:
        return "", ""
    return f"{ratios.shapes:,}", f"{ratios.median:.2f} ({ratios.low:.2f}-{ratios.high:.2f})"
