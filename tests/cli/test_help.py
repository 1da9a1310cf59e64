"""Help, mistakes in options and verbs, and what every verb's help must say."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from simulator.cli import main
from simulator.cli.parser import parser
from tests.conftest import ROOT

VERBS = (
    "run",
    "compare",
    "plot",
    "list",
    "trace",
    "trace stats",
    "check-scheduler",
    "calibrate",
    "validate",
    "completion",
    "help",
)


def outcome(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command line."""
    try:
        code = main(shlex.split(line))
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else -1
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    bare = outcome(capsys, "")
    assert bare == outcome(capsys, "--help") == outcome(capsys, "help")
    assert bare[0] == 0
    assert "usage: servesim" in bare[1]
    assert outcome(capsys, "trace") == outcome(capsys, "trace --help")


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_has_examples_and_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = outcome(capsys, f"{verb} --help")
    assert code == 0
    assert out == outcome(capsys, f"help {verb}")[1]
    examples, codes = out.partition("\nexamples:\n")[2].split("\nexit codes:\n")
    assert "servesim " in examples
    assert codes.split()[0] == "0"
    assert "130  interrupted" in codes
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("verb", VERBS)
def test_examples_are_accepted(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = outcome(capsys, f"{verb} --help")[1]
    lines = out.partition("\nexamples:\n")[2].split("\nexit codes:\n")[0].splitlines()
    commands = [
        line[line.index("servesim ") + len("servesim ") :].split(" | ")[0].rstrip(")")
        for line in lines
        if "#" not in line
    ]
    assert commands
    for command in commands:
        parser().parse_args(shlex.split(command))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rnu x", "servesim: argument VERB: invalid choice: 'rnu'; did you mean run? (see servesim --help)"),
        ("help rnu", "invalid choice: 'rnu'; did you mean run?"),
        ("--vresion", "servesim: unrecognized arguments: --vresion; did you mean --version? (see servesim --help)"),
        ("run x --jsn", "servesim run: unrecognized arguments: --jsn; did you mean --json"),
        ("run x --sed=3", "unrecognized arguments: --sed=3; did you mean --seed"),
        ("compare a b --jbos 3", "did you mean --jobs"),
        ("trace stats x --jso", "servesim trace stats: unrecognized arguments: --jso; did you mean --json?"),
        ("trace stat x", "servesim trace: argument ACTION: invalid choice: 'stat'; did you mean stats?"),
        ("list gpu", "servesim list: argument kind: invalid choice: 'gpu'; did you mean gpus?"),
        ("run", "servesim run: the following arguments are required: SCENARIO (see servesim run --help)"),
        (
            "run a b",
            "servesim run: unrecognized arguments: b; run takes one SCENARIO, and servesim compare takes several",
        ),
        ("run a --trace x --trace y", "servesim run: argument --trace: is given twice (see servesim run --help)"),
        ("run a --seed", "servesim run: argument --seed: expected one argument (see servesim run --help)"),
        ("compare a b --trace-format azure", "--trace-format has no meaning without --trace"),
    ],
)
def test_a_mistake_is_one_line_that_says_where_help_is(
    line: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = outcome(capsys, line)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_an_option_that_may_be_repeated_keeps_all_values() -> None:
    arguments = parser().parse_args(shlex.split("run a --set x=1 --set y=2"))
    assert arguments.set == ["x=1", "y=2"]


@pytest.mark.parametrize("line", ["run quickstart --set workload.limit=20", "run quickstart --dry-run"])
def test_quiet_prints_nothing_but_what_was_asked_for(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(capsys, f"{line} -q") == (0, "", "")
    code, out, err = outcome(capsys, f"{line} -q --json")
    assert (code, err, out[0]) == (0, "", "{")


def test_help_and_lists_do_not_import_what_only_runs_need() -> None:
    heavy = ("numpy", "pandas", "scipy", "matplotlib", "rich", "simpy", "yaml", "argcomplete")
    program = (
        "import sys\nfrom simulator.cli import main\nmain([])\nmain(['list', 'scenarios'])\n"
        f"print(*(name for name in {heavy} if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


@pytest.mark.parametrize("quiet", ["", " --no-progress", " -q"])
def test_validation_has_a_bar_on_a_terminal(
    quiet: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, bool]] = []

    @contextlib.contextmanager
    def bar(runs: int, shown: bool) -> Iterator[None]:
        seen.append((runs, shown))
        yield None

    monkeypatch.setattr("simulator.validation.draws.runs_bar", bar)
    monkeypatch.setattr("simulator.validation.draws._attempt", _nothing)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    outcome(capsys, f"validate poisson_a100 --seeds 1 --jobs 1{quiet}")
    assert seen
    assert {shown for runs, shown in seen if runs} == {not quiet}


def _nothing(task: object) -> str:
    return "not simulated here"
