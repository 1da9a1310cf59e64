"""`servesim compare`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from simulator.cli.codes import EXIT_DONE
from simulator.cli.options import whole


def compare(arguments: argparse.Namespace) -> int:
    """Run several scenarios over the same requests, and print what differs."""
    from simulator.progress import runs_bar
    from simulator.study.compare import run as study
    from simulator.study.compare.document import document_of
    from simulator.study.compare.files import write_comparison

    seeds, jobs, out = whole(arguments.seeds, "--seeds", 1), whole(arguments.jobs, "--jobs", -1), arguments.out
    shown = sys.stderr.isatty() and not arguments.no_progress
    with runs_bar(seeds * len(arguments.scenarios), shown) as progress:
        comparison = study.compare(
            arguments.scenarios,
            arguments.set,
            baseline=arguments.baseline,
            seeds=seeds,
            trace=arguments.trace,
            mixed_decoding=arguments.mixed_decoding,
            jobs=jobs,
            out=out,
            progress=progress,
        )
    document = document_of(comparison)
    if out is not None:
        write_comparison(out, document, comparison)
    _print(arguments, document, comparison)
    return EXIT_DONE


def _print(arguments: argparse.Namespace, document: dict[str, Any], comparison: Any) -> None:
    if arguments.json:
        print(json.dumps(document, indent=2))
        return
    from simulator.study.compare.document import compared_metrics
    from simulator.study.compare.report import print_comparison

    print_comparison(document, compared_metrics(comparison))
    if arguments.out is not None:
        print(f"\nresults in {arguments.out}")
