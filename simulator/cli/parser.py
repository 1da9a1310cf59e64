"""The verbs of `servesim` and their options."""

from __future__ import annotations

import argparse
from typing import Any

from simulator.cli import compare, completion, lists, run
from simulator.cli.codes import EXIT_DONE, EXIT_FAILED, NO_CHECK, NO_STEADY_STATE
from simulator.cli.measured_parser import add_calibrate, add_check_scheduler, add_validate
from simulator.cli.options import (
    a_path,
    add_jobs,
    add_json,
    add_out,
    add_quiet,
    add_seed,
    add_seeds,
    add_set,
    add_trace,
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
            ("servesim run my.yaml --dry-run", "does it fit? memory and bounds"),
            ("servesim list gpus", "what is built in"),
            ("servesim help run", "options, examples and exit codes of a verb"),
        ),
    )
    command.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = command.add_subparsers(metavar="VERB", parser_class=Parser)
    _add_run(verbs)
    _add_compare(verbs)
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
            ("servesim run quickstart", "tables"),
            ("servesim run my.yaml --set deployment.pools.chat.replicas=3 --out out/three", "keep the results"),
            ("servesim run my.yaml --trace requests.csv --json | jq .latency", "another trace, as JSON"),
            ("sed s/h100/h200/ my.yaml | servesim run - --dry-run", "a scenario from stdin"),
        ),
        failures={EXIT_FAILED: "the scheduler deadlocked, or --fail-on-slo and an objective was missed"},
        surplus="; run takes one SCENARIO, and servesim compare takes several",
    )
    one.add_argument("scenario", metavar="SCENARIO", help=_SCENARIO)
    add_trace(one, "the scenario's")
    add_set(one)
    add_seed(one)
    add_seeds(one, None, "replications, under this seed and those after it, as one result")
    add_jobs(one)
    add_out(one, "the results directory")
    add_json(one)
    one.add_argument(
        "--fail-on-slo", action="store_true", help="exit with 1 if an objective of the scenario's slo is missed"
    )
    one.add_argument("--steps", metavar="DIR", type=a_path, help="record every step of every replica here")
    one.add_argument("--dry-run", action="store_true", help="does it fit? memory and bounds, nothing simulated")
    add_quiet(one)
    one.set_defaults(verb=run.run)


def _add_compare(verbs: Any) -> None:
    several = verbs.add_parser(
        "compare",
        help="simulate several scenarios over the same requests",
        description="Simulate several scenarios over the same requests, and say what differs and where the time goes.",
        examples=(
            ("servesim compare designs/colocated designs/disaggregated", "two shipped designs"),
            ("servesim compare a.yaml b.yaml --trace requests.csv --out out", "over your requests, with pictures"),
        ),
        failures=NO_STEADY_STATE | {EXIT_FAILED: "a scheduler deadlocked"},
    )
    several.add_argument("scenarios", metavar="SCENARIO", nargs="+", help=f"{_SCENARIO}; two or more")
    several.add_argument("--baseline", metavar="NAME", help="the design that the others are compared to (the first)")
    add_seed(several, "the first seed, in the place of the scenarios'")
    add_seeds(several, "5", "independent draws of the requests")
    add_set(several, "a key of all scenarios")
    add_trace(several, "the scenarios'")
    several.add_argument(
        "--allow-different",
        metavar="WHAT",
        action="append",
        default=[],
        help="accept designs that differ in this as well: model, weights, kv_cache or workload, or several with commas",
    )
    several.add_argument(
        "--mixed-decoding",
        action="store_true",
        help="accept designs with other output lengths, or drafts accepted by a rule that changes the output",
    )
    add_out(several, "compare.json, pictures and all results")
    add_json(several)
    add_jobs(several)
    add_quiet(several)
    several.set_defaults(verb=compare.compare)


def _add_list(verbs: Any) -> None:
    names = verbs.add_parser(
        "list",
        help="list what is built in",
        description="List what is built in, with the facts of each.",
        examples=(
            ("servesim list", "what can be listed"),
            ("servesim list gpus", "memory, peak rates, bandwidth, calibrated or estimated"),
            ("servesim list models --json", "as JSON, with plain numbers"),
        ),
        failures=NO_CHECK,
        surplus="; list takes one kind",
    )
    names.add_argument("kind", nargs="?", choices=list(lists.LISTS), help="what to list; without it, what there is")
    add_json(names, "print a JSON list with an object for each name")
    names.set_defaults(verb=lists.print_list)


def _add_trace(verbs: Any) -> None:
    trace = verbs.add_parser(
        "trace", help="look at a trace", description="Look at a trace.", examples=_STATS, failures=NO_CHECK
    )
    actions = trace.add_subparsers(metavar="ACTION", parser_class=Parser)
    stats = actions.add_parser(
        "stats",
        help="rate, burstiness and lengths of traces",
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
    ("servesim trace stats azure_conv_sample.csv requests.csv", "two traces side by side"),
    ("zcat requests.csv.gz | head -1000 | servesim trace stats -", "the first rows of one"),
)


def _add_completion(verbs: Any) -> None:
    shell = verbs.add_parser(
        "completion",
        help="print a shell's completion script",
        description="Print what a shell must read to complete verbs, options, scenarios and keys of --set.\n"
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
