"""The CPU time of two commits: `python -m tests.bench.compare OLD NEW [BENCH ...] [--runs N]`.

Both are checked out in a temporary folder, and their commands run in turn. A ratio above 1 means that NEW is slower.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.bench import ratios
from tests.bench.commands import Command, CommandError, cache_byte_code, run_of, usages_in_turn
from tests.bench.ratios import Ratio, interval_name, ratio_of, with_out
from tests.conftest import ROOT

#: A ratio differs from 1 if its interval is further from it than this.
TOLERANCE = 0.02

BENCHES: dict[str, Command] = {
    "start": ratios.START,
    "steady_100k": ratios.STEADY,
    "steady_100k --out": with_out(ratios.STEADY),
    "dense_100k": ratios.DENSE,
    "defaults_100k": ratios.DEFAULTS,
    "prompt_pool_12k": ratios.PROMPT_POOL,
    "pair_100k": ratios.PAIR,
    "apart_100k": ratios.APART,
    "speculative_100k": ratios.SPECULATIVE,
    "fleet, 100,000 requests": run_of("bench/fleet_1m", "workload.requests=100000"),
}


class CommitError(Exception):
    """A commit that git does not know, or cannot check out."""


def judge(ratio: Ratio) -> str:
    """Return `slower` or `faster` if the interval of a ratio is beyond the tolerance, `equal` if it is within it, and
    `uncertain` if it is both.
    """
    if ratio.low > 1 + TOLERANCE:
        return "slower"
    if ratio.high < 1 - TOLERANCE:
        return "faster"
    if ratio.low >= 1 - TOLERANCE and ratio.high <= 1 + TOLERANCE:
        return "equal"
    return "uncertain"


def row_of(ratio: Ratio) -> str:
    """Return the row of a bench that ran with both commits."""
    new, old = ratio.numerator, ratio.denominator
    return (
        f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) {judge(ratio)}; "
        f"{old.cpu_s:.2f} -> {new.cpu_s:.2f} CPU s, {old.peak_mb:,.0f} -> {new.peak_mb:,.0f} MB"
    )


def conclusion(verdicts: dict[str, str]) -> str:
    """Return the last lines: the benches that differ, and those of which it is uncertain, from verdicts by bench."""
    percent = f"{TOLERANCE:.0%}"
    lines = [
        f"{verdict} by more than {percent}: {', '.join(names)}"
        for verdict in ("slower", "faster")
        if (names := [name for name, found in verdicts.items() if found == verdict])
    ]
    lines = lines or [f"no bench differs by more than {percent} for sure"]
    if unclear := [name for name, found in verdicts.items() if found == "uncertain"]:
        lines.append(f"uncertain, give more --runs: {', '.join(unclear)}")
    return "\n".join(lines)


def hash_of(repository: Path, commit: str) -> str:
    """Return the hash of a commit.

    Raises:
        CommitError: git does not know the commit.
    """
    try:
        return _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    except CommitError:
        raise CommitError(f"unknown commit {commit!r}") from None


@contextlib.contextmanager
def checked_out(repository: Path, hashes: Sequence[str]) -> Iterator[list[Path]]:
    """Provide folders with these commits, and remove them at the end; the repository's files do not change.

    Raises:
        CommitError: git cannot check one out.
    """
    with tempfile.TemporaryDirectory(prefix="servesim-bench-") as place:
        folders = [Path(place) / str(number) for number in range(len(hashes))]
        try:
            for folder, commit in zip(folders, hashes, strict=True):
                _git(repository, "worktree", "add", "--quiet", "--detach", str(folder), commit)
            yield folders
        finally:
            for folder in folders:
                if folder.exists():
                    _git(repository, "worktree", "remove", "--force", str(folder))


def _git(repository: Path, *words: str) -> str:
    """Run git and return its output. Raises CommitError with its message."""
    try:
        done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CommitError("git is not installed") from None
    if done.returncode:
        raise CommitError(done.stderr.strip() or f"git {words[0]}: exit code {done.returncode}")
    return done.stdout.strip()


def chosen(names: Sequence[str]) -> dict[str, Command]:
    """Return the benches whose name contains one of `names`; without names, all of them.

    Raises:
        ValueError: no name contains it.
    """
    for name in names:
        if not any(name in bench for bench in BENCHES):
            raise ValueError(f"no bench is named {name!r}; known: {', '.join(BENCHES)}")
    return {bench: command for bench, command in BENCHES.items() if not names or any(n in bench for n in names)}


def compare(folders: Sequence[Path], benches: dict[str, Command], runs: int) -> dict[str, str]:
    """Run benches in the folders of the old and of the new commit, print a row each, and return the verdicts.

    A bench that fails in one of them, such as one whose scenario the old commit lacks, has no verdict.
    """
    verdicts, width = {}, max(map(len, benches))
    for name, command in benches.items():
        try:
            old, new = usages_in_turn([replace(command, folder=folder) for folder in folders], runs)
        except CommandError as error:
            print(f"{name:{width}} failed: {error}", flush=True)
            continue
        ratio = ratio_of(new, old)
        verdicts[name] = judge(ratio)
        print(f"{name:{width}} {row_of(ratio)}", flush=True)
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare", description=__doc__.partition("\n")[0])
    for name in ("old", "new"):
        parser.add_argument(name, metavar=name.upper(), help="a commit, branch or tag")
    parser.add_argument("benches", metavar="BENCH", nargs="*", help="part of the name of benches (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each command and commit (default: 5)")
    arguments = parser.parse_intermixed_args()
    if arguments.runs < 1:
        parser.error("--runs: expected at least 1")
    try:
        benches = chosen(arguments.benches)
        hashes = [hash_of(ROOT, commit) for commit in (arguments.old, arguments.new)]
        with checked_out(ROOT, hashes) as folders:
            for folder in folders:
                cache_byte_code(folder)
            kind = interval_name(arguments.runs)
            print(f"{hashes[0][:10]} -> {hashes[1][:10]}: ratio of medians of {arguments.runs} runs in turn ({kind})")
            print(conclusion(compare(folders, benches, arguments.runs)))
    except (ValueError, CommitError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
