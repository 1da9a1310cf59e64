"""The verbs that compare with what was measured: `servesim check-scheduler`, `validate` and `calibrate`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from simulator.cli.codes import EXIT_DONE, EXIT_FAILED
from simulator.cli.options import whole
from simulator.errors import InputError


def check_scheduler(arguments: argparse.Namespace) -> int:
    """Replay recordings of a scheduler; the code says whether all were met."""
    from simulator.study import check_scheduler as recordings

    identical = True
    for folder in arguments.folders:
        verdict = recordings.check_scheduler(folder)
        if not arguments.quiet:
            print(verdict, flush=True)
        identical = identical and verdict.identical
    return EXIT_DONE if identical else EXIT_FAILED


def validate(arguments: argparse.Namespace) -> int:
    """Simulate measured runs again."""
    from simulator.study.validation.report import document, print_report, write_report
    from simulator.study.validation.run import compare, leave_one_model_out, read_measured

    seeds, jobs = whole(arguments.seeds, "--seeds", 1), whole(arguments.jobs, "--jobs", -1)
    if arguments.out is not None and arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"--out {arguments.out}: exists and is not a folder")
    rows = read_measured(arguments.files, _server(arguments))
    compared = (leave_one_model_out if arguments.leave_one_model_out else compare)(rows, seeds, jobs)
    if arguments.json:
        print(json.dumps(document(compared), indent=1))
    elif not arguments.quiet:
        print_report(compared)
    written = [] if arguments.out is None else write_report(compared, arguments.out)
    if not arguments.quiet:
        for path in written:
            print(path, file=sys.stderr)
    return EXIT_DONE


def _server(arguments: argparse.Namespace) -> dict[str, str]:
    """What the options say of a server."""
    from simulator.study.validation.bench_server import OPTIONS

    given = {name: getattr(arguments, name) for name in ("gpu", "model", "tensor_parallel")}
    for entry in arguments.set:
        key, separator, value = entry.partition("=")
        if not separator or key not in OPTIONS:
            raise InputError(f"--set {entry}: expected KEY=VALUE with one of the keys {', '.join(OPTIONS)}")
        given[key] = value
    return {name: value for name, value in given.items() if value is not None}


def calibrate(arguments: argparse.Namespace) -> int:
    """Fit kernels or the host to measurements."""
    if arguments.bench is not None:
        return _calibrate_host(arguments)
    from simulator.study.calibrate import SHIPPED, calibrate_gpu, own_calibrations, print_calibration

    if arguments.gpu is None:
        raise InputError("calibrate needs --gpu, the GPU whose kernels were measured, or --bench, a server's benchmark")
    for name in ("model", "tensor_parallel", "set"):
        if getattr(arguments, name):
            raise InputError(f"--{name.replace('_', '-')} describes the server of --bench; kernels have none")
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
    """Compare the measured kernels that a calibration takes with others; the code says nothing of what is flagged,
    since engines differ."""
    from simulator.study.cross_check import cross_check_gpu, print_comparisons

    for name in ("source", "out", "update_shipped"):
        if getattr(arguments, name):
            raise InputError(f"--cross-check writes nothing, and reads the package alone: leave --{name} out")
    print_comparisons(*cross_check_gpu(arguments.gpu))
    return EXIT_DONE


def _calibrate_host(arguments: argparse.Namespace) -> int:
    from simulator.study.calibrate_host import calibrate_host, print_calibration, read_benchmarks, write_host

    if arguments.source is not None:
        raise InputError("--source has kernel timings, --bench a server's benchmark: calibrate one after the other")
    rows = read_benchmarks(arguments.bench, _server(arguments))
    found = calibrate_host(rows, whole(arguments.jobs, "--jobs", -1))
    path = write_host(found, [path.name for path in arguments.bench], arguments.out or Path())
    if not arguments.quiet:
        print_calibration(found)
        print(f"host model in {path}: use it with cost_model: {{host: {path}}}")
    return EXIT_DONE
