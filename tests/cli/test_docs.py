"""docs/cli.md has the output of the command: `python -m tests.cli.test_docs` writes the examples again."""

from __future__ import annotations

import contextlib
import io
import re
import shlex

from simulator.cli import main
from simulator.cli.codes import MEANINGS
from simulator.cli.parser import parser
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "cli.md"


def printed(line: str) -> str:
    """Return the output of a command line on both streams."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        main(shlex.split(line)[1:])
    return out.getvalue()


def renewed(page: str) -> str:
    """Return the page with the output of each `$ servesim ...` of its console blocks."""

    def block(match: re.Match[str]) -> str:
        commands = [line for line in match[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"{line}\n{printed(line[2:])}" for line in commands) + "```"

    return re.sub(r"```console\n(.*?)```", block, page, flags=re.DOTALL)


def test_the_page_shows_what_is_printed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("$ servesim") >= 10
    assert renewed(page) == page


def test_the_page_has_every_exit_code_and_verb() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for code, meaning in MEANINGS.items():
        assert f"| {code} | {meaning} |" in page
    for verb in parser().format_help().partition("VERB\n")[2].partition("\n\n")[0].splitlines():
        if verb.startswith("    ") and not verb.startswith("     "):
            name = verb.split()[0]
            assert f"| `{name}" in page, name


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
