"""The verbs of `servesim` and their options."""

from __future__ import annotations

import argparse
from typing import Any

from simulator.cli import compare, completion, lists, plot, run
from simulator.cli.codes import EXIT_DONE, EXIT_FAILED, NO_CHECK, NO_STEADY_STATE
from simulator.cli.measured_parser import add_calibrate, add_check_scheduler, add_validate
from simulator.cli.options import (
    add_jobs,
    add_json,
    add_out,
    add_quiet,
    add_seed,
    add_seeds,
    add_set,
    add_trace,
    path_argument,
)
from simulator.cli.parsing import Parser

#: A scenario on the command line.
_SCENARIO = "a scenario file, - for stdin, or the name of a shipped one (servesim list scenarios)"


def parser() -> Parser:
    """Return the parser of the whole command line."""
    command = Parser(
        prog="servesim",
        description="A discrete-event simulator of LLM serving.",
        examples=(
            ("servesim run quickstart", "simulate a shipped scenario"),
            ("servesim run my.yaml --dry-run", "memory, concurrency and bounds, without simulating"),
            ("servesim list gpus", "the known GPUs and their rates"),
            ("servesim help run", "options, examples and exit codes of a verb"),
        ),
    )
    command.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = command.add_subparsers(metavar="VERB", parser_class=Parser)
    _add_run(verbs)
    _add_compare(verbs)
    _add_plot(verbs)
    _add_list(verbs)
    _add_trace(verbs)
    add_check_scheduler(verbs)
    add_calibrate(verbs)
    add_validate(verbs)
    _add_completion(verbs)
    _add_help(verbs, command)
    return command


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from simulator.common.version import version

        print(f"servesim {version()}")
        parser.exit()


def _add_run(verbs: Any) -> None:
    one = verbs.add_parser(
        "run",
        help="simulate one scenario",
        description="Simulate one scenario.",
        examples=(
            ("servesim run quickstart", "print tables"),
            (
                "servesim run my.yaml --set deployment.pools.chat.replicas=3 --out out/three",
                "write the results to a folder",
            ),
            ("servesim run my.yaml --trace requests.csv --json | jq .latency", "replay another trace, print JSON"),
            ("sed s/h100/h200/ my.yaml | servesim run - --dry-run", "read a scenario from stdin"),
        ),
        failures={EXIT_FAILED: "the scheduler deadlocked, or --fail-on-slo and an objective was missed"},
        surplus="; run takes one SCENARIO, and servesim compare takes several",
    )
    one.add_argument("scenario", metavar="SCENARIO", help=_SCENARIO)
    add_trace(one, "the scenario's")
    add_set(one)
    add_seed(one)
    add_seeds(one, None, "simulate under this many seeds, from --seed on, and pool the results")
    add_jobs(one)
    add_out(one, "the results directory")
    add_json(one)
    one.add_argument(
        "--fail-on-slo", action="store_true", help="exit with 1 if an objective of the scenario's slo is missed"
    )
    one.add_argument(
        "--steps",
        metavar="DIR",
        type=path_argument,
        help="write recordings of all steps of each replica to this folder",
    )
    one.add_argument("--dry-run", action="store_true", help="print memory, concurrency and bounds without simulating")
    add_quiet(one)
    one.set_defaults(verb=run.run)


def _add_compare(verbs: Any) -> None:
    several = verbs.add_parser(
        "compare",
        help="simulate several scenarios over the same requests",
        description="Simulate several scenarios over the same requests, and print their differences.",
        examples=(
            ("servesim compare designs/colocated designs/disaggregated", "compare two shipped designs"),
            (
                "servesim compare a.yaml b.yaml --trace requests.csv --out out",
                "use a trace, and write results and figures to a folder",
            ),
        ),
        failures=NO_STEADY_STATE | {EXIT_FAILED: "a scheduler deadlocked"},
    )
    several.add_argument("scenarios", metavar="SCENARIO", nargs="+", help=f"{_SCENARIO}; two or more")
    several.add_argument(
        "--baseline", metavar="NAME", help="the design to which the others are compared (default: the first)"
    )
    add_seed(several, "the first seed, instead of the scenarios'")
    add_seeds(several, "5", "number of seeds, each with its own draw of the requests")
    add_set(several, "a key of all scenarios")
    add_trace(several, "the scenarios'")
    several.add_argument(
        "--allow-different",
        metavar="WHAT",
        action="append",
        default=[],
        help="allow designs to differ in this as well: model, weights, kv_cache or workload; several with commas",
    )
    several.add_argument(
        "--mixed-decoding",
        action="store_true",
        help="allow designs to differ in output lengths, and in rules for accepting drafts that change the output",
    )
    add_out(several, "compare.json, figures and the results of each design")
    add_json(several)
    add_jobs(several)
    add_quiet(several)
    several.set_defaults(verb=compare.compare)


def _add_plot(verbs: Any) -> None:
    draw = verbs.add_parser(
        "plot",
        help="draw the figures of results directories",
        description="Draw the distributions of TTFT and ITL (latency.png), and requests, KV memory and\n"
        "tokens over time (load.png), into each results directory.",
        examples=(
            ("servesim run my.yaml --out out/mine", "write a results directory"),
            ("servesim plot out/mine", "draw its figures"),
        ),
        failures=NO_CHECK,
    )
    draw.add_argument(
        "folders",
        metavar="DIR",
        type=path_argument,
        nargs="+",
        help="a results directory of run --out, or that of a design or a seed",
    )
    add_quiet(draw, progress=False)
    draw.set_defaults(verb=plot.plot)


def _add_list(verbs: Any) -> None:
    names = verbs.add_parser(
        "list",
        help="list the known GPUs, models, schedulers and so on",
        description="List the known GPUs, models, schedulers and so on, with facts about each.",
        examples=(
            ("servesim list", "the kinds of lists"),
            ("servesim list gpus", "memory, bandwidth, peak rates, source of kernel times"),
            ("servesim list models --json", "print JSON with plain numbers"),
        ),
        failures=NO_CHECK,
        surplus="; list takes one kind",
    )
    names.add_argument(
        "kind", nargs="?", choices=list(lists.LISTS), help="the kind to list; without it, list the kinds"
    )
    add_json(names, "print a JSON list with one object a name")
    names.set_defaults(verb=lists.print_list)


def _add_trace(verbs: Any) -> None:
    trace = verbs.add_parser(
        "trace", help="describe traces", description="Describe traces.", examples=_STATS, failures=NO_CHECK
    )
    actions = trace.add_subparsers(metavar="ACTION", parser_class=Parser)
    stats = actions.add_parser(
        "stats",
        help="print rate, burstiness and lengths of traces",
        description="Print rate, burstiness and lengths of traces, side by side.",
        examples=_STATS,
        failures=NO_CHECK,
    )
    stats.add_argument(
        "files", metavar="FILE", nargs="+", help="a trace file, - for stdin, or the name of a shipped one"
    )
    stats.add_argument("--trace-format", metavar="F", default="auto", help="format of the files")
    add_json(stats, "print one JSON object, by file")
    stats.set_defaults(verb=lists.trace_stats)


_STATS = (
    ("servesim trace stats azure_conv_sample.csv requests.csv", "compare two traces"),
    ("zcat requests.csv.gz | head -1000 | servesim trace stats -", "describe the first rows of a trace"),
)


def _add_completion(verbs: Any) -> None:
    shell = verbs.add_parser(
        "completion",
        help="print a shell's completion script",
        description="Print the script that a shell sources to complete verbs, options, scenarios and keys of --set.\n"
        "It needs argcomplete: python -m pip install argcomplete",
        examples=(
            ("source <(servesim completion bash)", "in ~/.bashrc"),
            ("source <(servesim completion zsh)", "in ~/.zshrc, after compinit"),
            ("servesim completion fish | source", "in ~/.config/fish/config.fish"),
        ),
        failures=NO_CHECK,
    )
    shell.add_argument("shell", choices=completion.SHELLS, help="the shell")
    shell.set_defaults(verb=completion.print_script)


def _add_help(verbs: Any, command: Parser) -> None:
    def show(arguments: argparse.Namespace) -> int:
        command.parse_args([*arguments.words, "--help"])
        return EXIT_DONE

    text = verbs.add_parser(
        "help",
        help="print the help of a verb",
        description="Print the help of a verb.",
        examples=(("servesim help trace stats", "as servesim trace stats --help"),),
        failures=NO_CHECK,
    )
    text.add_argument("words", metavar="VERB", nargs="*", help="a verb, and its action if it has several")
    text.set_defaults(verb=show)
