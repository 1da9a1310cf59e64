"""The verbs that use measurements: `servesim check-scheduler`, `validate` and `calibrate`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from simulator.cli.codes import EXIT_DONE, EXIT_FAILED
from simulator.cli.options import integer_option, jobs_of, show_progress
from simulator.errors import InputError


def check_scheduler(arguments: argparse.Namespace) -> int:
    """Replay recordings of a scheduler; the exit code says whether all steps are identical."""
    from simulator.recordings import check as recordings

    identical = True
    for folder in arguments.folders:
        verdict = recordings.check_scheduler(folder)
        if not arguments.quiet:
            print(verdict, flush=True)
        identical = identical and verdict.identical
    return EXIT_DONE if identical else EXIT_FAILED


def validate(arguments: argparse.Namespace) -> int:
    """Simulate measured runs and compare; without files, list the shipped ones."""
    from simulator.common.progress import bars

    if not arguments.all and not arguments.files:
        return _list_measured(arguments)
    with bars(show_progress(arguments)):
        return _validate_all(arguments) if arguments.all else _validate_files(arguments)


def _validate_files(arguments: argparse.Namespace) -> int:
    from simulator.common.shipped import find_measured
    from simulator.validation.report import check_folder, document, print_report, write_report
    from simulator.validation.run import compare, leave_one_model_out, read_measured

    seeds, jobs = integer_option(arguments.seeds, "--seeds", 1), jobs_of(arguments)
    if arguments.out is not None:
        check_folder(arguments.out)
    rows = read_measured([find_measured(path) for path in arguments.files], _server(arguments))
    compared = (leave_one_model_out if arguments.leave_one_model_out else compare)(rows, seeds, jobs)
    if arguments.json:
        print(json.dumps(document(compared), indent=1))
    elif not arguments.quiet:
        print_report(compared)
    _print_paths([] if arguments.out is None else write_report(compared, arguments.out), arguments)
    if not any(True for entry in compared for _ in entry.pairs()):
        first = compared[0]
        raise InputError(f"no row could be compared; {first.row.where}: {first.left_out or 'nothing was measured'}")
    return EXIT_DONE


def _validate_all(arguments: argparse.Namespace) -> int:
    """Simulate all shipped rows, part by part."""
    from simulator.validation.report import check_folder, document, print_report, write_report
    from simulator.validation.shipped import compare_all

    given = _file_options(arguments)
    if arguments.files or given:
        raise InputError(f"--all simulates the shipped rows as they are: leave out {', '.join(given) or 'the files'}")
    seeds, jobs = integer_option(arguments.seeds, "--seeds", 1), jobs_of(arguments)
    if arguments.out is not None:
        check_folder(arguments.out)
    found = {}
    for part, compared in compare_all(seeds, jobs):
        if arguments.json:
            found[part.name] = {"title": part.title, "files": part.files, "held_out": part.held_out} | document(
                compared
            )
        elif not arguments.quiet:
            print(f"== {part.title} ({', '.join(part.files)}) ==\n", flush=True)
            print_report(compared, every_row=False)
            print(flush=True)
        written = [] if arguments.out is None else write_report(compared, arguments.out / part.name)
        _print_paths(written, arguments)
    if arguments.json:
        print(json.dumps(found, indent=1))
    return EXIT_DONE


def _file_options(arguments: argparse.Namespace) -> list[str]:
    """Return the given options that apply only to files."""
    names = ("leave_one_model_out", *_SERVER, "set")
    return [f"--{name.replace('_', '-')}" for name in names if vars(arguments)[name]]


def _list_measured(arguments: argparse.Namespace) -> int:
    from simulator.validation.shipped import listing

    if arguments.out is not None or _file_options(arguments):
        raise InputError(
            "validate needs FILE, or --all for the shipped rows; without either it lists the shipped files"
        )
    files = listing()
    if arguments.json:
        print(json.dumps(files, indent=1))
    elif not arguments.quiet:
        width = max(len(str(file["name"])) for file in files)
        for file in files:
            print(f"{file['name']:{width}}  {file['rows']:4} rows  {file['part']}")
        print("\nservesim validate NAME simulates one of these, servesim validate --all all of them (a few minutes)")
    return EXIT_DONE


def _print_paths(paths: Sequence[Path], arguments: argparse.Namespace) -> None:
    if not arguments.quiet:
        for path in paths:
            print(path, file=sys.stderr)


#: Options that describe the server of a `vllm bench serve` JSON.
_SERVER = ("gpu", "model", "tensor_parallel")


def _server(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the settings of a server that the options give."""
    from simulator.validation.bench.server import OPTIONS

    given = {name: getattr(arguments, name) for name in _SERVER}
    for entry in arguments.set:
        key, separator, value = entry.partition("=")
        if not separator or key not in OPTIONS:
            raise InputError(f"--set {entry}: expected KEY=VALUE with one of the keys {', '.join(OPTIONS)}")
        given[key] = value
    return {name: value for name, value in given.items() if value is not None}


def calibrate(arguments: argparse.Namespace) -> int:
    """Fit kernels or the host to measurements."""
    if arguments.bench is not None:
        from simulator.common.progress import bars

        with bars(show_progress(arguments)):
            return _calibrate_host(arguments)
    from simulator.calibration.gpu import SHIPPED, calibrate_gpu, own_calibrations, print_calibration

    if arguments.gpu is None:
        raise InputError("calibrate needs --gpu, the GPU of the measured kernels, or --bench, a server's benchmark")
    for name in ("model", "tensor_parallel", "set"):
        if getattr(arguments, name):
            raise InputError(f"--{name.replace('_', '-')} describes the server of --bench; kernels have no server")
    if arguments.cross_check:
        return _cross_check(arguments)
    if arguments.update_shipped and arguments.out is not None:
        raise InputError("--update-shipped writes over the shipped calibration, --out elsewhere: give one of them")
    out = SHIPPED if arguments.update_shipped else arguments.out or own_calibrations()
    path, calibration = calibrate_gpu(arguments.gpu, arguments.source or ["aiconfigurator"], out)
    if not arguments.quiet:
        print_calibration(calibration)
        used = (
            "runs on this GPU use it" if arguments.out is None else f"use it with cost_model: {{calibration: {path}}}"
        )
        print(f"calibration in {path}: {used}")
    return EXIT_DONE


def _cross_check(arguments: argparse.Namespace) -> int:
    """Compare the measured kernels of a calibration with other measurements.

    The exit code does not depend on flagged differences, since engines differ.
    """
    from simulator.calibration.cross_check import cross_check_gpu, print_comparisons

    for name in ("source", "out", "update_shipped"):
        if getattr(arguments, name):
            option = name.replace("_", "-")
            raise InputError(
                f"--cross-check writes no file and reads only the package's measurements: leave --{option} out"
            )
    print_comparisons(*cross_check_gpu(arguments.gpu))
    return EXIT_DONE


def _calibrate_host(arguments: argparse.Namespace) -> int:
    from simulator.calibration.host import calibrate_host, print_calibration, read_benchmarks, write_host
    from simulator.common.shipped import find_measured

    if arguments.source is not None:
        raise InputError("--source has kernel timings, --bench a server's benchmark: calibrate one after the other")
    for name in ("cross_check", "update_shipped"):
        if getattr(arguments, name):
            raise InputError(f"--{name.replace('_', '-')} is of kernels, --bench of a host: leave one of them out")
    rows = read_benchmarks([find_measured(path) for path in arguments.bench], _server(arguments))
    found = calibrate_host(rows, jobs_of(arguments))
    path = write_host(found, [path.name for path in arguments.bench], arguments.out or Path())
    if not arguments.quiet:
        print_calibration(found)
        print(f"host model in {path}: use it with cost_model: {{host: {path}}}")
    return EXIT_DONE
