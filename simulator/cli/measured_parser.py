"""The options of the verbs that use measurements."""

from __future__ import annotations

import argparse
from typing import Any

from simulator.cli import measured
from simulator.cli.codes import EXIT_FAILED, NO_CHECK, NO_STEADY_STATE
from simulator.cli.options import add_jobs, add_json, add_quiet, add_seeds, path_argument


def add_check_scheduler(verbs: Any) -> None:
    """Add the verb `check-scheduler`."""
    check = verbs.add_parser(
        "check-scheduler",
        help="replay recordings of a scheduler and compare every step",
        description="Replay recordings of a scheduler and compare every field of every step.",
        examples=(
            ("servesim run my.yaml --steps steps", "make a recording"),
            ("servesim check-scheduler steps/0", "replay it"),
        ),
        failures=NO_STEADY_STATE | {EXIT_FAILED: "a step differs from its recording"},
    )
    check.add_argument("folders", metavar="RUN_DIR", type=path_argument, nargs="+", help="the folder of a recording")
    add_quiet(check, progress=False)
    check.set_defaults(verb=measured.check_scheduler)


def add_validate(verbs: Any) -> None:
    """Add the verb `validate`."""
    validate = verbs.add_parser(
        "validate",
        help="simulate measured runs and compare with the measurements",
        description="Simulate measured serving runs and compare every measured metric with its prediction.",
        examples=(
            ("servesim validate result.json --gpu h100-sxm", "a result of `vllm bench serve`"),
            ("servesim validate rows.csv --out out", "measured rows, with files and a figure"),
            ("servesim validate", "list the shipped files of measured rows"),
            ("servesim validate --all", "the figures of docs/accuracy.md (minutes)"),
        ),
        failures=NO_CHECK,
    )
    validate.add_argument(
        "files",
        metavar="FILE",
        type=path_argument,
        nargs="*",
        help="a CSV of measured runs, the name of a shipped one, or a `vllm bench serve` JSON; without it, list those",
    )
    validate.add_argument("--all", action="store_true", help="simulate all shipped rows and print the errors")
    validate.add_argument(
        "--out", metavar="DIR", type=path_argument, help="write validation.csv, .json and .png to this folder"
    )
    add_json(validate, "print one JSON object: errors by group, and every row with its predictions")
    add_seeds(validate, "5", "number of independent arrival processes; predictions are medians over them")
    add_jobs(validate)
    validate.add_argument(
        "--leave-one-model-out",
        action="store_true",
        help="predict each model with host terms fitted to the others (CSV files)",
    )
    _add_server(validate)
    add_quiet(validate)
    validate.set_defaults(verb=measured.validate)


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu", metavar="GPU", help="the GPU, as in `servesim list gpus` or by the name that its driver reports"
    )
    server = parser.add_argument_group("the server of a `vllm bench serve` JSON, which the file does not describe")
    server.add_argument("--model", metavar="MODEL", help="the model, if the file's model_id is not known")
    server.add_argument("--tensor-parallel", metavar="N", help="GPUs that share the model")
    server.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="another setting of the server, such as max_num_seqs=256; may be repeated (docs/validation.md)",
    )


def add_calibrate(verbs: Any) -> None:
    """Add the verb `calibrate`."""
    calibrate = verbs.add_parser(
        "calibrate",
        help="fit a GPU's kernel times to measurements, or host time to a benchmark",
        description="Fit the kernel times of a GPU to measurements, and test the fits on held-out shapes.\n"
        "With --bench, fit the host time to benchmarks of a server, and test it on held-out runs.",
        examples=(
            ("servesim calibrate --bench result.json --gpu h100-sxm", "fit the host time of a server"),
            ("servesim calibrate --gpu h100-sxm --source mine.csv", "fit kernels to your measurements"),
            ("servesim calibrate --gpu h100-sxm --cross-check", "check measured kernels against other measurements"),
        ),
        failures=NO_CHECK,
    )
    calibrate.add_argument(
        "--source",
        metavar="FILE.csv",
        nargs="+",
        help="CSV files of kernel timings, or aiconfigurator (the default), or both",
    )
    calibrate.add_argument(
        "--bench",
        metavar="FILE",
        nargs="+",
        type=path_argument,
        help="`vllm bench serve` JSON, or CSVs of measured runs",
    )
    calibrate.add_argument(
        "--out",
        metavar="DIR",
        type=path_argument,
        help="write to this folder (default: your own folder of calibrations, which runs use; ./ with --bench)",
    )
    calibrate.add_argument(
        "--update-shipped", action="store_true", help="replace the calibration that the package includes"
    )
    calibrate.add_argument(
        "--cross-check",
        action="store_true",
        help="fit nothing: compare the calibration's tables with other measurements of the same kernels and with "
        "physical bounds",
    )
    add_jobs(calibrate)
    _add_server(calibrate)
    add_quiet(calibrate)
    calibrate.set_defaults(verb=measured.calibrate)
