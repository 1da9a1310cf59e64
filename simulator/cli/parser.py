"""The verbs of `servesim` and their options."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from simulator.cli import compare, lists, measured, run
from simulator.cli.codes import EXIT_INPUT


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(EXIT_INPUT)


def parser() -> argparse.ArgumentParser:
    command = _Parser(prog="servesim", description="A discrete-event simulator of LLM serving.", allow_abbrev=False)
    command.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = command.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    _add_run(verbs)
    _add_compare(verbs)
    _add_list(verbs)
    _add_trace(verbs)
    _add_check_scheduler(verbs)
    _add_calibrate(verbs)
    _add_validate(verbs)
    return command


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from simulator.version import version

        print(f"servesim {version()}")
        parser.exit()


def _add_run(verbs: Any) -> None:
    one = verbs.add_parser(
        "run", help="simulate one scenario", description="Simulate one scenario.", allow_abbrev=False
    )
    one.add_argument("scenario", metavar="SCENARIO", help="a scenario file, or the name of a shipped one")
    one.add_argument("--trace", metavar="FILE", help="replay this trace in the place of the scenario's workload")
    one.add_argument("--trace-format", metavar="F", help="its format, where that cannot be told from the file")
    one.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="set a key of the scenario; may be repeated"
    )
    one.add_argument("--seed", metavar="N", help="the seed of every random stream")
    one.add_argument("--out", metavar="DIR", type=Path, help="write the results directory here")
    one.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    one.add_argument("--steps", metavar="DIR", type=Path, help="record every step of every replica here")
    one.add_argument("--dry-run", action="store_true", help="does it fit? memory and bounds, nothing simulated")
    one.add_argument("--no-progress", action="store_true", help="no progress bar")
    one.set_defaults(verb=run.run)


def _add_compare(verbs: Any) -> None:
    several = verbs.add_parser(
        "compare",
        help="simulate several scenarios over the same requests",
        description="Simulate several scenarios over the same requests, and say what differs and where the time goes.",
        allow_abbrev=False,
    )
    several.add_argument(
        "scenarios", metavar="SCENARIO", nargs="+", help="scenario files, or names of shipped ones; two or more"
    )
    several.add_argument("--baseline", metavar="NAME", help="the design that the others are compared to (the first)")
    several.add_argument("--seeds", metavar="N", default="5", help="independent draws of the requests (5)")
    several.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="set a key of all scenarios; may be repeated"
    )
    several.add_argument("--trace", metavar="FILE", help="replay this trace in the place of the scenarios' workload")
    several.add_argument(
        "--mixed-decoding",
        action="store_true",
        help="accept designs with other output lengths, or drafts accepted by a rule that changes the output",
    )
    several.add_argument("--out", metavar="DIR", type=Path, help="write compare.json, pictures and all results here")
    several.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    several.add_argument("--jobs", metavar="N", default="-1", help="processes; -1 for all cores")
    several.add_argument("--no-progress", action="store_true", help="no progress bar")
    several.set_defaults(verb=compare.compare)


def _add_list(verbs: Any) -> None:
    names = verbs.add_parser("list", help="list what is built in", allow_abbrev=False)
    names.add_argument("kind", choices=list(lists.LISTS), help="what to list")
    names.set_defaults(verb=lists.print_list)


def _add_trace(verbs: Any) -> None:
    trace = verbs.add_parser("trace", help="look at a trace", allow_abbrev=False)
    actions = trace.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)
    stats = actions.add_parser("stats", help="rate, burstiness and lengths of traces", allow_abbrev=False)
    stats.add_argument("files", metavar="FILE", nargs="+", help="a trace file, or the name of a shipped one")
    stats.add_argument("--trace-format", metavar="F", default="auto", help="format of the files")
    stats.add_argument("--json", action="store_true", help="print one JSON object, by file")
    stats.set_defaults(verb=lists.trace_stats)


def _add_check_scheduler(verbs: Any) -> None:
    check = verbs.add_parser(
        "check-scheduler",
        help="replay recordings of a scheduler, and compare every step",
        description="Replay recordings of a scheduler, and compare every field of every step.",
        allow_abbrev=False,
    )
    check.add_argument("folders", metavar="RUN_DIR", type=Path, nargs="+", help="the folder of a recording")
    check.set_defaults(verb=measured.check_scheduler)


def _add_validate(verbs: Any) -> None:
    validate = verbs.add_parser(
        "validate",
        help="simulate measured runs again, and say how far off",
        description="Simulate measured serving runs again, and compare every metric that was measured.",
        allow_abbrev=False,
    )
    validate.add_argument(
        "files", metavar="FILE", type=Path, nargs="+", help="a CSV of measured runs, or a `vllm bench serve` JSON"
    )
    validate.add_argument("--out", metavar="DIR", type=Path, help="write validation.csv, .json and .png here")
    validate.add_argument("--json", action="store_true", help="print the errors by group as one JSON object")
    validate.add_argument("--seeds", metavar="N", default="5", help="independent arrivals; predictions are medians")
    validate.add_argument("--jobs", metavar="N", default="-1", help="processes; -1 for all cores")
    validate.add_argument(
        "--leave-one-model-out",
        action="store_true",
        help="predict each model with host terms fitted to the others (CSV files)",
    )
    _add_server(validate)
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
        help="weights, kv_cache, max_num_seqs, max_num_batched_tokens or host; may be repeated",
    )


def _add_calibrate(verbs: Any) -> None:
    calibrate = verbs.add_parser(
        "calibrate",
        help="fit a GPU's kernels to measured ones, or host time to a benchmark",
        description="Fit the kernels of a GPU to measured ones, and test the fits on shapes they have not seen. "
        "With --bench, fit the time of the host to benchmarks of a server, and test it on what it has not seen.",
        allow_abbrev=False,
    )
    calibrate.add_argument(
        "--source",
        metavar="FILE.csv",
        nargs="+",
        help="CSV files of kernel timings, or aiconfigurator (the default), or both",
    )
    calibrate.add_argument(
        "--bench", metavar="FILE", nargs="+", type=Path, help="`vllm bench serve` JSON files, or CSVs of measured runs"
    )
    calibrate.add_argument(
        "--out", metavar="DIR", type=Path, help="write here (default: over the shipped calibration; ./ with --bench)"
    )
    calibrate.add_argument("--jobs", metavar="N", default="-1", help="with --bench: processes; -1 for all cores")
    _add_server(calibrate)
    calibrate.set_defaults(verb=measured.calibrate)
