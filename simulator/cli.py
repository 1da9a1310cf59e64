"""The command `servesim`: verbs only. Each reads its options, calls one function and prints what that returns."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from simulator.errors import InputError, StalledError

EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_UNSTEADY, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code. Bad input is one line on stderr and code 2, never a traceback."""
    # Numbers are crunched on one core: BLAS threads would only spin. Set before numpy is first imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from cost_models import CostModelError

    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.verb(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except (InputError, CostModelError) as error:
        print(f"servesim: {error}", file=sys.stderr)
        return EXIT_INPUT
    except StalledError as error:
        print(f"servesim: deadlock: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("servesim: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough
        _mute()
        return EXIT_DONE
    except OSError as error:
        _mute()
        place = f"{error.filename}: " if error.filename else "output: "
        print(f"servesim: {place}{error.strerror}", file=sys.stderr)
        return EXIT_INPUT


def _mute() -> None:
    """Send what is left in stdout's buffer nowhere, so that Python does not fail on it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(EXIT_INPUT)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="servesim", description="A discrete-event simulator of LLM serving.", allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    _add_run(verbs)
    _add_list(verbs)
    _add_trace(verbs)
    _add_check_scheduler(verbs)
    _add_calibrate(verbs)
    _add_validate(verbs)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from simulator.version import version

        print(f"servesim {version()}")
        parser.exit()


def _add_run(verbs: Any) -> None:
    run = verbs.add_parser(
        "run", help="simulate one scenario", description="Simulate one scenario.", allow_abbrev=False
    )
    run.add_argument("scenario", metavar="SCENARIO", help="a scenario file, or the name of a shipped one")
    run.add_argument("--trace", metavar="FILE", help="replay this trace in the place of the scenario's workload")
    run.add_argument("--trace-format", metavar="F", help="its format, where that cannot be told from the file")
    run.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="set a key of the scenario; may be repeated"
    )
    run.add_argument("--seed", metavar="N", help="the seed of every random stream")
    run.add_argument("--out", metavar="DIR", type=Path, help="write the results directory here")
    run.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    run.add_argument("--steps", metavar="DIR", type=Path, help="record every step of every replica here")
    run.add_argument("--dry-run", action="store_true", help="does it fit? memory and bounds, nothing simulated")
    run.add_argument("--no-progress", action="store_true", help="no progress bar")
    run.set_defaults(verb=_run)


def _add_list(verbs: Any) -> None:
    names = verbs.add_parser("list", help="list what is built in", allow_abbrev=False)
    names.add_argument("kind", choices=list(_LISTS), help="what to list")
    names.set_defaults(verb=_list)


def _add_trace(verbs: Any) -> None:
    trace = verbs.add_parser("trace", help="look at a trace", allow_abbrev=False)
    actions = trace.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)
    stats = actions.add_parser("stats", help="rate, burstiness and lengths of traces", allow_abbrev=False)
    stats.add_argument("files", metavar="FILE", nargs="+", help="a trace file, or the name of a shipped one")
    stats.add_argument("--trace-format", metavar="F", default="auto", help="format of the files")
    stats.add_argument("--json", action="store_true", help="print one JSON object, by file")
    stats.set_defaults(verb=_trace_stats)


def _add_check_scheduler(verbs: Any) -> None:
    check = verbs.add_parser(
        "check-scheduler",
        help="replay recordings of a scheduler, and compare every step",
        description="Replay recordings of a scheduler, and compare every field of every step.",
        allow_abbrev=False,
    )
    check.add_argument("folders", metavar="RUN_DIR", type=Path, nargs="+", help="the folder of a recording")
    check.set_defaults(verb=_check_scheduler)


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
    validate.set_defaults(verb=_validate)


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
    calibrate.set_defaults(verb=_calibrate)


# --- verbs ----------------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    from simulator.data import find_scenario
    from simulator.scenario import load_scenario
    from simulator.study.run import execute, prepare

    if arguments.trace_format is not None and arguments.trace is None:
        raise InputError("--trace-format has no meaning without --trace; set workload.trace_format instead")
    overrides = list(arguments.set)
    if arguments.seed is not None:
        overrides.append(f"seed={arguments.seed}")
    path = find_scenario(arguments.scenario)
    scenario = load_scenario(path, overrides, trace=arguments.trace, trace_format=arguments.trace_format)
    prepared = prepare(scenario, None if arguments.trace else path)
    if arguments.dry_run:
        return _dry_run(arguments, prepared)
    _check_folders(arguments)
    with _interrupts_noted() as interrupts:
        with _progress(arguments, prepared) as progress:
            finished = execute(prepared, steps=arguments.steps, progress=progress)
        if arguments.out is not None:
            from simulator.results.store import write_results

            write_results(arguments.out, finished.record, finished.summary, scenario)
    _print_run(arguments, finished.summary)
    return _exit_code(finished, bool(interrupts))


def _check_folders(arguments: argparse.Namespace) -> None:
    """Before anything is simulated: can the results be written?"""
    if arguments.out is None:
        return
    from simulator.results.store import check_target

    check_target(arguments.out)
    if arguments.steps is not None:
        out, steps = arguments.out.resolve(), arguments.steps.resolve()
        if out == steps or out in steps.parents or steps in out.parents:
            raise InputError("--out and --steps: give two folders, neither of them inside the other")


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """While this lasts, the first Ctrl-C is noted and not raised: what is being summarised or written gets done.

    The simulation itself, the long part, hears of it in its own way, and ends.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _exit_code(finished: Any, interrupted: bool) -> int:
    if not finished.record.complete:
        print("servesim: interrupted; what had finished by then is kept and marked partial", file=sys.stderr)
        return EXIT_INTERRUPTED
    if interrupted:
        print("servesim: interrupted when the simulation was done; its results are complete", file=sys.stderr)
        return EXIT_INTERRUPTED
    found = {warning["code"] for warning in finished.summary["warnings"]}
    if finished.scenario.run.steady_state == "required" and found & {"unstable_queue", "steady_state_not_reached"}:
        print("servesim: run.steady_state is required, and the run did not reach one", file=sys.stderr)
        return EXIT_UNSTEADY
    return EXIT_DONE


def _print_run(arguments: argparse.Namespace, summary: dict[str, Any]) -> None:
    if arguments.json:
        print(json.dumps(summary, indent=2))
    else:
        from simulator.results.table import print_summary

        print_summary(summary)
    if arguments.out is not None and not arguments.json:
        print(f"results in {arguments.out}")


def _dry_run(arguments: argparse.Namespace, prepared: Any) -> int:
    from simulator.study.dry_run import dry_run, print_dry_run

    for option in ("out", "steps"):
        if getattr(arguments, option) is not None:
            raise InputError(f"--{option} has no meaning with --dry-run, which simulates nothing")
    bounds = dry_run(prepared)
    if arguments.json:
        print(json.dumps(bounds, indent=2))
    else:
        print_dry_run(bounds)
    return EXIT_DONE


def _progress(arguments: argparse.Namespace, prepared: Any) -> Any:
    from simulator.progress import progress_bar

    shown = sys.stderr.isatty() and not arguments.no_progress
    return progress_bar(len(prepared.table), shown)


def _list(arguments: argparse.Namespace) -> int:
    for line in _LISTS[arguments.kind]():
        print(line)
    return EXIT_DONE


def _trace_stats(arguments: argparse.Namespace) -> int:
    from simulator.study.traces import print_trace_statistics, trace_statistics_of

    statistics = {name: trace_statistics_of(name, arguments.trace_format) for name in arguments.files}
    if arguments.json:
        print(json.dumps(statistics, indent=2))
    else:
        print_trace_statistics(statistics)
    return EXIT_DONE


def _check_scheduler(arguments: argparse.Namespace) -> int:
    from simulator.study.check_scheduler import check_scheduler

    identical = True
    for folder in arguments.folders:
        verdict = check_scheduler(folder)
        print(verdict, flush=True)
        identical = identical and verdict.identical
    return EXIT_DONE if identical else EXIT_FAILED


def _validate(arguments: argparse.Namespace) -> int:
    from simulator.study.validation.errors import summed_up
    from simulator.study.validation.report import print_report, write_report
    from simulator.study.validation.run import compare, leave_one_model_out, read_measured

    seeds, jobs = _whole(arguments.seeds, "--seeds", 1), _whole(arguments.jobs, "--jobs", -1)
    if arguments.out is not None and arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"--out {arguments.out}: exists and is not a folder")
    rows = read_measured(arguments.files, _server(arguments))
    compared = (leave_one_model_out if arguments.leave_one_model_out else compare)(rows, seeds, jobs)
    if arguments.json:
        print(json.dumps(summed_up(compared), indent=1))
    else:
        print_report(compared)
    if arguments.out is not None:
        for path in write_report(compared, arguments.out):
            print(path, file=sys.stderr)
    return EXIT_DONE


def _server(arguments: argparse.Namespace) -> dict[str, str]:
    """What the options say of a server."""
    known = ("weights", "kv_cache", "max_num_seqs", "max_num_batched_tokens", "host")
    given = {name: getattr(arguments, name) for name in ("gpu", "model", "tensor_parallel")}
    for entry in arguments.set:
        key, separator, value = entry.partition("=")
        if not separator or key not in known:
            raise InputError(f"--set {entry}: expected KEY=VALUE with one of the keys {', '.join(known)}")
        given[key] = value
    for name in ("tensor_parallel", "max_num_seqs", "max_num_batched_tokens"):
        if given.get(name) is not None:
            _whole(given[name], name, 1)
    return {name: value for name, value in given.items() if value is not None}


def _whole(text: str, name: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or value == 0:
        raise InputError(f"{name}: expected a whole number of at least {max(least, 1)}, found {text!r}")
    return value


def _calibrate(arguments: argparse.Namespace) -> int:
    if arguments.bench is not None:
        return _calibrate_host(arguments)
    from simulator.study.calibrate import SHIPPED, calibrate_gpu, print_calibration

    if arguments.gpu is None:
        raise InputError("calibrate needs --gpu, the GPU whose kernels were measured, or --bench, a server's benchmark")
    for name in ("model", "tensor_parallel", "set"):
        if getattr(arguments, name):
            raise InputError(f"--{name.replace('_', '-')} describes the server of --bench; kernels have none")
    path, calibration = calibrate_gpu(arguments.gpu, arguments.source or ["aiconfigurator"], arguments.out or SHIPPED)
    print_calibration(calibration)
    print(f"calibration in {path}")
    return EXIT_DONE


def _calibrate_host(arguments: argparse.Namespace) -> int:
    from simulator.study.calibrate_host import calibrate_host, print_calibration, read_benchmarks, write_host

    if arguments.source is not None:
        raise InputError("--source has kernel timings, --bench a server's benchmark: calibrate one after the other")
    rows = read_benchmarks(arguments.bench, _server(arguments))
    found = calibrate_host(rows, _whole(arguments.jobs, "--jobs", -1))
    print_calibration(found)
    path = write_host(found, [path.name for path in arguments.bench], arguments.out or Path())
    print(f"host model in {path}: use it with cost_model: {{host: {path}}}")
    return EXIT_DONE


# --- lists ----------------------------------------------------------------------------------------------------------


def _gpus() -> list[str]:
    from cost_models import gpu_names

    return gpu_names()


def _models() -> list[str]:
    from cost_models import model_names

    return model_names()


def _formats() -> list[str]:
    from simulator.workload.formats import FORMATS

    return sorted(FORMATS)


def _scenarios() -> list[str]:
    from simulator.data import scenario_names

    return scenario_names()


def _tags(name: str) -> Callable[[], list[str]]:
    """The values of a tagged choice of the schema, such as the routers."""

    def tags() -> list[str]:
        from simulator.scenario import reader, schema

        return reader.tags(getattr(schema, name))

    return tags


_LISTS: dict[str, Callable[[], list[str]]] = {
    "gpus": _gpus,
    "models": _models,
    "schedulers": _tags("Scheduler"),
    "routers": _tags("Router"),
    "formats": _formats,
    "scenarios": _scenarios,
}


if __name__ == "__main__":
    raise SystemExit(main())
