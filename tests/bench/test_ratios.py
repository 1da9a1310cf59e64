"""Ratios of commands: their statistics, verdicts and rows. No benchmark runs here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.bench import measure
from tests.bench.commands import Command, CommandError, Usage, run_of, usage_of, usages_in_turn
from tests.bench.measure import chosen, measured, verdict
from tests.bench.ratios import LIMITS, Limit, Ratio, median_interval, median_usage, ratio_of, with_out

NOTHING = Command(("-c", "pass"))


def usages(*cpu_s: float, peak_mb: float = 50.0) -> list[Usage]:
    return [Usage(each, peak_mb) for each in cpu_s]


def test_the_ratio_is_that_of_the_medians() -> None:
    ratio = ratio_of(usages(2.0, 9.0, 4.0, peak_mb=80), usages(1.0, 3.0, 2.0))
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 3.0)
    assert (ratio.numerator, ratio.denominator) == (Usage(4.0, 80), Usage(2.0, 50))


def test_a_slower_machine_gives_the_same_ratio() -> None:
    fast, slow = (ratio_of(usages(2 * k, 3 * k), usages(k, k)) for k in (1.0, 4.0))
    assert (fast.value, fast.low, fast.high) == (slow.value, slow.low, slow.high)


@pytest.mark.parametrize(
    ("count", "cut"),
    [(1, 0), (2, 0), (4, 0), (5, 0), (7, 0), (8, 1), (10, 1), (11, 2), (20, 5)],
)
def test_the_interval_of_a_median_cuts_as_much_as_the_binomial_distribution_allows(count: int, cut: int) -> None:
    """The values of a table of the sign test, such as Conover's: 8 values without the ends cover with 93.0%."""
    assert median_interval([float(value) for value in reversed(range(count))]) == (cut, count - 1 - cut)


def test_memory_and_time_are_medians_of_their_own() -> None:
    assert median_usage([Usage(1.0, 9.0), Usage(3.0, 1.0), Usage(2.0, 5.0)]) == Usage(2.0, 5.0)


@pytest.mark.parametrize(
    ("cpu_s", "peak_mb", "word"), [(3.0, 100.0, "met"), (3.1, 100.0, "MISSED"), (3.0, 101.0, "MISSED")]
)
def test_the_verdict_is_on_the_ratio_and_on_memory(cpu_s: float, peak_mb: float, word: str) -> None:
    limit = Limit("a / b", NOTHING, NOTHING, 3.0, 100.0)
    ratio = Ratio(cpu_s, cpu_s - 0.5, cpu_s + 0.5, Usage(cpu_s, peak_mb), Usage(1.0, 40.0))
    assert ratio.meets(limit) is (word == "met")
    row = verdict(ratio, limit)
    assert f"{cpu_s:.2f} ({cpu_s - 0.5:.2f} to {cpu_s + 0.5:.2f}), at most 3: {word}; " in row
    assert row.endswith(f"{cpu_s:.2f} / 1.00 CPU s, {peak_mb:.0f} (at most 100) / 40 MB")


def test_a_row_whose_folder_is_missing_is_skipped_with_the_reason(tmp_path: Path) -> None:
    limit = Limit("a / b", NOTHING, Command(("run.py",), tmp_path / "proto"), 1.0)
    assert measured(limit, 1) == (f"skipped: there is no {tmp_path / 'proto'}", True)


def test_a_command_that_fails_is_a_row_with_its_last_words() -> None:
    limit = Limit("a / b", Command(("-c", "raise SystemExit('first\\nlast')")), NOTHING, 1.0)
    assert measured(limit, 1) == ("failed: last", False)
    with pytest.raises(CommandError, match="exit code 3"):
        usage_of(Command(("-c", "raise SystemExit(3)")))


def test_rows_are_chosen_by_parts_of_their_names() -> None:
    assert [limit.name for limit in chosen(["/ prototype", "start"])] == [
        "steady_100k / prototype",
        "start / import numpy",
    ]
    assert not any(limit.long for limit in chosen([]))
    assert any(limit.long for limit in chosen(["10,000,000"]))
    with pytest.raises(ValueError, match=r"no ratio is named 'speed'; known: steady_100k / prototype, "):
        chosen(["speed"])
    assert len({limit.name for limit in LIMITS}) == len(LIMITS)


def test_the_exit_code_says_whether_all_limits_are_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["measure", "start", "fleet", "--runs", "2"])
    monkeypatch.setattr(measure, "cache_byte_code", lambda folder: None)
    for times, code in (((2.0, 1.0), 0), ((11.0, 1.0), 1)):
        monkeypatch.setattr(measure, "usages_in_turn", lambda commands, runs: [usages(t, t) for t in times])  # noqa: B023
        assert measure.main() == code
        rows = capsys.readouterr().out.splitlines()
        assert rows[0].startswith("ratios of medians of 2 runs in turn (least to greatest)")
        assert [row.split(" / ")[0] for row in rows[1:]] == ["start", "fleet_1m"]
        assert all(("MISSED" in row) is bool(code) for row in rows[1:])


def test_commands_run_in_turn_in_their_folders_and_with_byte_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "module.py").write_text("")
    write = (
        "import module, os, sys; open('log', 'a').write(sys.argv[1] + ' ' + str(os.path.exists(sys.argv[2])) + '\\n')"
    )
    commands = [Command(("-c", write, name, "OUT"), tmp_path) for name in ("a", "b")]
    one, other = usages_in_turn(commands, 3)
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [f"{name} False" for name in "abbaab"]
    assert len(list((tmp_path / "__pycache__").iterdir())) == 1
    assert len(one) == len(other) == 3
    assert all(usage.cpu_s > 0 and usage.peak_mb > 1 for usage in [*one, *other])
    assert "PYTHONDONTWRITEBYTECODE" in os.environ


def test_the_time_of_children_counts() -> None:
    work = "for _ in range(10**6): pass"
    alone = Command(("-c", "pass"))
    parent = Command(
        ("-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {10 * (work + chr(10))!r}])")
    )
    assert usage_of(parent).cpu_s > 2 * usage_of(alone).cpu_s


def test_settings_and_options_of_a_run() -> None:
    command = with_out(run_of("quickstart", "--trace", "TEN", "seed=3"))
    assert command.arguments[3:] == ("quickstart", "--trace", "TEN", "--set", "seed=3", "--out", "OUT")
