"""Ratios of the cost of whole commands, with their limits: `python -m tests.bench.measure [--runs N] [NAME ...]`.

Prints a row a ratio, of those whose name contains one of the NAMEs; the exit code is 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.bench.commands import CommandError, cache_byte_code, usages_in_turn
from tests.bench.ratios import LIMITS, Limit, Ratio, interval_name, ratio_of
from tests.conftest import ROOT

_WIDTH = max(len(limit.name) for limit in LIMITS)


def chosen(names: Sequence[str]) -> list[Limit]:
    """Return the limits whose name contains one of `names`; without names, all but the long ones.

    Raises:
        ValueError: no name contains it.
    """
    for name in names:
        if not any(name in limit.name for limit in LIMITS):
            raise ValueError(f"no ratio is named {name!r}; known: {', '.join(limit.name for limit in LIMITS)}")
    if not names:
        return [limit for limit in LIMITS if not limit.long]
    return [limit for limit in LIMITS if any(name in limit.name for name in names)]


def verdict(ratio: Ratio, limit: Limit) -> str:
    """Return the row of a ratio that was measured."""
    first, second = ratio.numerator, ratio.denominator
    memory = "" if limit.peak_mb is None else f" (at most {limit.peak_mb:,.0f})"
    return (
        f"{ratio.value:5.2f} ({ratio.low:.2f} to {ratio.high:.2f}), at most {limit.ratio:g}: "
        f"{'met' if ratio.meets(limit) else 'MISSED'}; {first.cpu_s:.2f} / {second.cpu_s:.2f} CPU s, "
        f"{first.peak_mb:,.0f}{memory} / {second.peak_mb:,.0f} MB"
    )


def measured(limit: Limit, runs: int) -> tuple[str, bool]:
    """Measure a ratio; return its row, and whether its limits were met or it had to be skipped."""
    folder = limit.missing()
    if folder is not None:
        return f"skipped: there is no {folder}", True
    try:
        numerators, denominators = usages_in_turn((limit.numerator, limit.denominator), runs)
    except CommandError as error:
        return f"failed: {error}", False
    ratio = ratio_of(numerators, denominators)
    return verdict(ratio, limit), ratio.meets(limit)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.measure", description=__doc__.partition("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="part of the name of ratios (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each command (default: 5)")
    arguments = parser.parse_intermixed_args()
    try:
        limits = chosen(arguments.names)
    except ValueError as error:
        parser.error(str(error))
    if arguments.runs < 1:
        parser.error("--runs: expected at least 1")
    cache_byte_code(ROOT)
    kind = interval_name(arguments.runs)
    print(f"ratios of medians of {arguments.runs} runs in turn ({kind}): user and system time, peak memory")
    all_met = True
    for limit in limits:
        row, met = measured(limit, arguments.runs)
        print(f"{limit.name:{_WIDTH}} {row}", flush=True)
        all_met = all_met and met
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
