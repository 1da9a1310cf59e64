"""The comparison of two commits: verdicts, folders of commits and errors, without running a benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import compare
from tests.bench.commands import Command, Usage
from tests.bench.compare import CommitError, checked_out, conclusion, hash_of, judge, row_of
from tests.bench.ratios import Ratio


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two commits, whose program works for longer in the second, and with changes in no commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for number in (1, 30):
        (folder / "program.py").write_text(f"for _ in range({number} * 10**6): pass\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", str(number))
    (folder / "program.py").write_text("raise SystemExit('not committed')\n")
    (folder / "notes.txt").write_text("mine\n")
    monkeypatch.setattr(compare, "ROOT", folder)
    return folder


def ratio(value: float, low: float, high: float) -> Ratio:
    return Ratio(value, low, high, Usage(value, 60.0), Usage(1.0, 50.0))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.021, 1.5, "slower"),
        (0.5, 0.979, "faster"),
        (0.98, 1.02, "equal"),
        (1.0, 1.03, "uncertain"),
        (0.97, 1.0, "uncertain"),
        (0.9, 1.1, "uncertain"),
        (1.02, 1.2, "uncertain"),
    ],
)
def test_the_verdict_is_that_of_the_whole_interval(low: float, high: float, verdict: str) -> None:
    assert judge(ratio((low + high) / 2, low, high)) == verdict


def test_a_row_has_the_ratio_and_both_medians() -> None:
    assert row_of(ratio(1.25, 1.2, 1.3)) == "1.250 (1.200 to 1.300) slower; 1.00 -> 1.25 CPU s, 50 -> 60 MB"


def test_the_last_lines_name_the_benches_that_differ() -> None:
    assert conclusion({"a": "slower", "b": "equal", "c": "slower", "d": "faster", "e": "uncertain"}).split("\n") == [
        "slower by more than 2%: a, c",
        "faster by more than 2%: d",
        "uncertain, give more --runs: e",
    ]
    assert conclusion({"a": "equal"}) == "no bench differs by more than 2% for sure"


def test_commits_are_checked_out_and_removed_again(repository: Path) -> None:
    hashes = [hash_of(repository, commit) for commit in ("HEAD~1", "HEAD")]
    status = git(repository, "status", "--porcelain")
    assert status
    with checked_out(repository, hashes) as folders:
        texts = [(folder / "program.py").read_text() for folder in folders]
        assert ["(1 *" in texts[0], "(30 *" in texts[1]] == [True, True]
        assert not (folders[0] / "notes.txt").exists()
        (folders[0] / "left.txt").write_text("a file of a run")
    assert not any(folder.exists() for folder in folders)
    assert len(git(repository, "worktree", "list").split("\n")) == 1
    assert git(repository, "status", "--porcelain") == status


def test_commits_are_removed_after_an_error(repository: Path) -> None:
    with pytest.raises(ZeroDivisionError), checked_out(repository, [hash_of(repository, "HEAD")]):
        raise ZeroDivisionError
    assert len(git(repository, "worktree", "list").split("\n")) == 1


@pytest.mark.parametrize("commit", ["nothing", "", "HEAD:program.py", "HEAD~9"])
def test_an_unknown_commit_is_named(commit: str, repository: Path) -> None:
    with pytest.raises(CommitError, match=f"unknown commit '{commit}'"):
        hash_of(repository, commit)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["HEAD", "nothing"], "unknown commit 'nothing'"),
        (["HEAD", "HEAD", "speed"], "no bench is named 'speed'; known: "),
        (["HEAD", "HEAD", "--runs", "0"], "--runs: expected at least 1"),
        (["HEAD"], "the following arguments are required: NEW"),
    ],
)
def test_a_mistake_is_named_in_the_last_line(
    words: list[str],
    message: str,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare", *words])
    with pytest.raises(SystemExit) as stop:
        compare.main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_two_commits_are_compared(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benches = {"work": Command(("program.py",)), "new in neither": Command(("missing.py",))}
    monkeypatch.setattr(compare, "BENCHES", benches)
    monkeypatch.setattr(compare, "cache_byte_code", lambda folder: None)
    monkeypatch.setattr(sys, "argv", ["compare", "HEAD~1", "HEAD", "--runs", "2"])
    assert compare.main() == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith(f"{git(repository, 'rev-parse', 'HEAD~1')[:10]} -> ")
    assert rows[0].endswith("ratio of medians of 2 runs in turn (least to greatest)")
    assert "slower; " in rows[1]
    assert rows[2].startswith("new in neither failed: ") and "missing.py" in rows[2]
    assert rows[3] == "slower by more than 2%: work"
