"""The verb `servesim compare`."""

from __future__ import annotations

import argparse
import json
import shlex
from typing import Any

from simulator.cli.codes import EXIT_DONE
from simulator.cli.options import integer_option, jobs_of, out_folder, seed_override, show_progress, trace_format


def compare(arguments: argparse.Namespace) -> int:
    """Simulate several scenarios over the same requests, and print their results and differences."""
    from simulator.common.progress import runs_bar
    from simulator.comparison.designs import load_designs
    from simulator.comparison.differences import AllowedDifferences
    from simulator.comparison.document import document_of
    from simulator.comparison.files import write_comparison
    from simulator.comparison.run import compare as compare_designs
    from simulator.study.seeds import SeedOptions

    seeds, jobs, out = integer_option(arguments.seeds, "--seeds", 1), jobs_of(arguments), out_folder(arguments)
    overrides, given = [*arguments.set, *seed_override(arguments)], trace_format(arguments)
    if given is not None:
        overrides.insert(0, f"workload.trace_format={given}")
    allowed = AllowedDifferences.of(",".join(arguments.allow_different), arguments.mixed_decoding)
    designs = load_designs(arguments.scenarios, overrides, arguments.trace, allowed)
    with runs_bar(seeds * len(designs), show_progress(arguments)) as progress:
        options = SeedOptions(seeds, jobs, out, arguments.force, progress)
        comparison = compare_designs(designs, options, baseline=arguments.baseline, allowed=allowed)
    document = document_of(comparison)
    if out is not None:
        write_comparison(out, document, comparison)
    _print(arguments, document, comparison)
    return EXIT_DONE


def _print(arguments: argparse.Namespace, document: dict[str, Any], comparison: Any) -> None:
    if arguments.json:
        print(json.dumps(document, indent=2))
        return
    if arguments.quiet:
        return
    from simulator.comparison.document import compared_metrics
    from simulator.comparison.report import print_comparison

    print_comparison(document, compared_metrics(comparison))
    if arguments.out is not None:
        print(
            f"\nresults in {arguments.out}; figures of a design: servesim plot {shlex.quote(str(arguments.out))}/DESIGN"
        )
