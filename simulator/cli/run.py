"""The verb `servesim run`."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from simulator.cli.codes import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNSTEADY
from simulator.cli.options import integer_option, jobs_of, out_folder, seed_override, show_progress, trace_format
from simulator.common.garbage import no_garbage_collection
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.scenario import Scenario


def run(arguments: argparse.Namespace) -> int:
    """Simulate one scenario, once or under several seeds."""
    overrides = [*arguments.set, *seed_override(arguments)]
    if arguments.seeds is not None:
        return _replicate(arguments, overrides)
    if arguments.jobs is not None:
        raise InputError("--jobs has no meaning without --seeds: a single run takes one process")
    with no_garbage_collection():  # a tenth of the start-up: imports create many objects, but no garbage
        return _simulate(arguments, overrides)


def _simulate(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Simulate the scenario once and print its result."""
    from simulator.scenario import load_scenario
    from simulator.study.prepare import prepare

    scenario = load_scenario(arguments.scenario, overrides, trace=arguments.trace, trace_format=trace_format(arguments))
    prepared = prepare(scenario)
    if arguments.fail_on_slo:
        _check_slo(scenario)
    if arguments.dry_run:
        return _dry_run(arguments, prepared)
    from simulator.study.run import check_folders, execute

    check_folders(scenario, out_folder(arguments), arguments.steps, arguments.force)
    with _first_interrupt_recorded() as interrupts:
        with _progress(arguments, prepared) as progress:
            finished = execute(prepared, steps=arguments.steps, progress=progress)
        if arguments.out is not None:
            finished.save(arguments.out, force=arguments.force)
    _print_run(arguments, finished.summary)
    code = _exit_code(finished, bool(interrupts))
    return _slo_code(finished.summary) if code == EXIT_DONE and arguments.fail_on_slo else code


def _replicate(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Simulate the scenario under several seeds (`--seeds N`) and print the pooled result."""
    from simulator.common.progress import runs_bar
    from simulator.scenario import load_scenario
    from simulator.study.replications import replicate
    from simulator.study.seeds import SeedOptions

    for option in ("steps", "dry_run"):
        if getattr(arguments, option):
            raise InputError(f"--{option.replace('_', '-')} has no meaning with --seeds, which runs several times")
    seeds, jobs = integer_option(arguments.seeds, "--seeds", 1), jobs_of(arguments)
    scenario = load_scenario(arguments.scenario, overrides, trace=arguments.trace, trace_format=trace_format(arguments))
    if arguments.fail_on_slo:
        _check_slo(scenario)
    out = out_folder(arguments)
    with runs_bar(seeds, show_progress(arguments)) as progress:
        found = replicate(scenario, SeedOptions(seeds, jobs, out, arguments.force, progress))
    _print_run(arguments, found.summary)
    code = _steady_code(scenario, found.summary)
    return _slo_code(found.summary) if code == EXIT_DONE and arguments.fail_on_slo else code


def _check_slo(scenario: Scenario) -> None:
    """Verify, before the simulation, that the scenario has an objective for `--fail-on-slo`."""
    if scenario.slo is None or not scenario.slo.by_statistic():
        raise InputError(
            "--fail-on-slo: the scenario has no objective for a statistic; give one, such as "
            "--set slo.ttft.p95=1s (a limit for each request counts only for goodput)"
        )


@contextlib.contextmanager
def _first_interrupt_recorded() -> Iterator[list[int]]:
    """Record the first Ctrl-C instead of raising it, so that a summary or a file in progress is completed.

    The simulation itself handles Ctrl-C on its own and ends early.
    """
    recorded: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        if recorded:
            raise KeyboardInterrupt
        recorded.append(number)

    before = signal.signal(signal.SIGINT, record)
    try:
        yield recorded
    finally:
        signal.signal(signal.SIGINT, before)


def _exit_code(finished: Any, interrupted: bool) -> int:
    if not finished.record.complete:
        print("servesim: interrupted; the results up to then are kept and marked partial", file=sys.stderr)
        return EXIT_INTERRUPTED
    if interrupted:
        print("servesim: interrupted after the simulation ended; its results are complete", file=sys.stderr)
        return EXIT_INTERRUPTED
    return _steady_code(finished.scenario, finished.summary)


def _steady_code(scenario: Scenario, summary: dict[str, Any]) -> int:
    found = {warning["code"] for warning in summary["warnings"]}
    if scenario.run.steady_state == "required" and found & {"unstable_queue", "steady_state_not_reached"}:
        print("servesim: run.steady_state is required, and the run did not reach a steady state", file=sys.stderr)
        return EXIT_UNSTEADY
    return EXIT_DONE


def _slo_code(summary: dict[str, Any]) -> int:
    from simulator.results.latency_table import verdict_of

    if summary["slo"]["met"]:
        return EXIT_DONE
    print(f"servesim: {verdict_of(summary)}", file=sys.stderr)
    return EXIT_FAILED


def _print_run(arguments: argparse.Namespace, summary: dict[str, Any]) -> None:
    if arguments.json:
        print(json.dumps(summary, indent=2))
    elif not arguments.quiet:
        if "replications" in summary:
            from simulator.results.replications_table import print_replications as show
        else:
            from simulator.results.table import print_summary as show
        show(summary)
        if arguments.out is not None:
            runs = "/seed-*" if "replications" in summary else ""
            print(f"results in {arguments.out}; figures: servesim plot {shlex.quote(str(arguments.out))}{runs}")


def _dry_run(arguments: argparse.Namespace, prepared: Any) -> int:
    from simulator.study.dry_run import dry_run, print_dry_run

    for option in ("out", "steps"):
        if getattr(arguments, option) is not None:
            raise InputError(f"--{option} has no meaning with --dry-run, which simulates nothing")
    bounds = dry_run(prepared)
    if arguments.json:
        print(json.dumps(bounds, indent=2))
    elif not arguments.quiet:
        print_dry_run(bounds)
    return EXIT_DONE


def _progress(arguments: argparse.Namespace, prepared: Any) -> Any:
    from simulator.common.progress import progress_bar

    return progress_bar(len(prepared.table), show_progress(arguments))
