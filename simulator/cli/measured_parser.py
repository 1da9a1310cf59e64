"""The options of the verbs that use measurements."""

from __future__ import annotations

import argparse
from typing import Any

from simulator.cli import measured
from simulator.cli.codes import EXIT_FAILED, NO_CHECK, NO_STEADY_STATE
from simulator.cli.options import a_path, add_jobs, add_json, add_quiet, add_seeds


def add_check_scheduler(verbs: Any) -> None:
    """Add the verb `check-scheduler`."""
    check = verbs.add_parser(
        "check-scheduler",
        help="replay recordings of a scheduler, and compare every step",
        description="Replay recordings of a scheduler, and compare every field of every step.",
        examples=(
            ("servesim run my.yaml --steps steps", "make a recording"),
            ("servesim check-scheduler steps/0", "replay it"),
        ),
        failures=NO_STEADY_STATE | {EXIT_FAILED: "a recording was not met"},
    )
    check.add_argument("folders", metavar="RUN_DIR", type=a_path, nargs="+", help="the folder of a recording")
    add_quiet(check, progress=False)
    check.set_defaults(verb=measured.check_scheduler)


def add_validate(verbs: Any) -> None:
    """Add the verb `validate`."""
    validate = verbs.add_parser(
        "validate",
        help="simulate measured runs again, and say how far off",
        description="Simulate measured serving runs again, and compare every metric that was measured.",
        examples=(
            ("servesim validate result.json --gpu h100-sxm", "a result of `vllm bench serve`"),
            ("servesim validate rows.csv --out out", "measured rows, with a picture"),
            ("servesim validate", "which measured rows are shipped"),
            ("servesim validate --all", "the figures of docs/accuracy.md (minutes)"),
        ),
        failures=NO_CHECK,
    )
    validate.add_argument(
        "files",
        metavar="FILE",
        type=a_path,
        nargs="*",
        help="a CSV of measured runs or the name of a shipped one, or a `vllm bench serve` JSON; none: list those",
    )
    validate.add_argument("--all", action="store_true", help="simulate every shipped row, and print the errors")
    validate.add_argument("--out", metavar="DIR", type=a_path, help="write validation.csv, .json and .png here")
    add_json(validate, "print one JSON object: errors by group, and every row with what was simulated")
    add_seeds(validate, "5", "independent arrivals; predictions are medians over them")
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
    parser.add_argument("--gpu", metavar="GPU", help="the GPU, as in `servesim list gpus` or as its driver calls it")
    server = parser.add_argument_group("the server of a `vllm bench serve` JSON, which does not say it")
    server.add_argument("--model", metavar="MODEL", help="the model, where model_id is not known")
    server.add_argument("--tensor-parallel", metavar="N", help="GPUs that share the model")
    server.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="another fact of the server, such as max_num_seqs=256; may be repeated (docs/validation.md)",
    )


def add_calibrate(verbs: Any) -> None:
    """Add the verb `calibrate`."""
    calibrate = verbs.add_parser(
        "calibrate",
        help="fit a GPU's kernels to measured ones, or host time to a benchmark",
        description="Fit the kernels of a GPU to measured ones, and test the fits on shapes they have not seen.\n"
        "With --bench, fit the time of the host to benchmarks of a server, and test it on\nwhat it has not seen.",
        examples=(
            ("servesim calibrate --bench result.json --gpu h100-sxm", "the host of your servers"),
            ("servesim calibrate --gpu h100-sxm --source mine.csv", "kernels that you measured"),
            ("servesim calibrate --gpu h100-sxm --cross-check", "measured kernels against others and physics"),
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
        type=a_path,
        help="`vllm bench serve` JSON, or CSVs of measured runs",
    )
    calibrate.add_argument(
        "--out",
        metavar="DIR",
        type=a_path,
        help="write here (default: your own folder of calibrations, which runs look into; ./ with --bench)",
    )
    calibrate.add_argument(
        "--update-shipped", action="store_true", help="write over the calibration that came with the package"
    )
    calibrate.add_argument(
        "--cross-check",
        action="store_true",
        help="fit nothing: compare the tables that the calibration takes with others of the same kernels and with "
        "what physics allows",
    )
    add_jobs(calibrate)
    _add_server(calibrate)
    add_quiet(calibrate)
    calibrate.set_defaults(verb=measured.calibrate)
