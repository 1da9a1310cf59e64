"""A comparison's document as printed tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from simulator.common.console import Screen, numbers_table, short
from simulator.comparison.decoding import BUDGETS
from simulator.comparison.metrics import Metric
from simulator.results.attribution import PARTS
from simulator.results.schedulers import scheduler_rows

Document = dict[str, Any]

_NAME = 26
#: Widths of a number with its interval, and of a plain number.
_WIDE, _NARROW = 34, 12
#: Metrics without a row if they are 0 for all designs.
_HIDDEN_AT_0 = ("requests.rejected",)
#: Metrics without a row if they are equal for all designs.
_HIDDEN_IF_EQUAL = ("requests.completed",)
_GAINS = {"tpot": "TPOT", "e2e": "E2E", "output_tokens_per_s": "output tokens/s"}
_PAIRED_BY = {
    True: "geometric mean over seeds, Student's t",
    False: "batch means of ratios by request; none for a rate",
}
#: The most keys with an allowed difference that are printed.
_MOST_DIFFERENT_KEYS = 8
#: The most keys that the note below speed-ups names.
_MOST_KEYS = 4


def print_comparison(document: Document, metrics: tuple[Metric, ...], stream: TextIO | None = None) -> None:
    """Print values, differences from the baseline and parts of the time to `stream` (stdout if None)."""
    designs, seeds = list(document["designs"]), document["seeds"]
    screen = Screen(stream, width=max(80, _NAME + _WIDE * len(designs), _NAME + 8 * _NARROW))
    under = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    screen.print(Text(f"{', '.join(designs)}; {under}; baseline: {document['baseline']}", style="bold"))
    for line in engine_lines(document):
        screen.print(Text(line))
    for line in different_lines(document):
        screen.print(Text(line, style="yellow"))
    tables = [_values(document, metrics), _differences(document, metrics), _attribution(document)]
    if "speed_up" in document:
        tables.insert(2, _speed_ups(document))
    for table, legend in tables:
        screen.print()
        screen.print(table)
        screen.print(Text(legend, style="dim"))
    for warning in document["warnings"]:
        screen.print()
        screen.print(Text(f"{warning['code']}: {warning['text']}", style="yellow"))


def engine_lines(document: Document) -> Iterator[str]:
    """Yield a line for each engine that is simulated, with its designs."""
    sharing: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, summary in document["designs"].items():
        sharing.setdefault(tuple(scheduler_rows(summary["schedulers"])), []).append(name)
    for rows, names in sharing.items():
        designs = "" if len(sharing) == 1 else f" in {', '.join(names)}"
        yield from (f"{label}{designs}: {line}" for label, line in rows)


def different_lines(document: Document) -> Iterator[str]:
    """Yield a line for each key with an allowed difference, and for the requests of each design if they differ."""
    found = document.get("different")
    if found is None:
        return
    yield "differences other than the deployment:"
    for key in list(found["keys"])[:_MOST_DIFFERENT_KEYS]:
        yield f"  {key}: " + ", ".join(
            f"{'not given' if value is None else value} in {name}" for name, value in found["keys"][key].items()
        )
    if len(found["keys"]) > _MOST_DIFFERENT_KEYS:
        yield f"  and {len(found['keys']) - _MOST_DIFFERENT_KEYS} more keys, which --json lists"
    for name, requests in (found["requests"] or {}).items():
        rate = f", {short(requests['rate_per_s'])} a second" if "rate_per_s" in requests else ""
        lengths = f"{short(requests['mean_prompt_tokens'])} + {short(requests['mean_output_tokens'])} tokens on average"
        yield f"  requests of {name}: {requests['requests']:,}, {lengths}{rate}"


def _values(document: Document, metrics: tuple[Metric, ...]) -> tuple[Table, str]:
    found, seeds = document["metrics"], len(document["seeds"])
    table = numbers_table("", list(found), _NAME)
    for row in _decoding_rows(document):
        table.add_row(*row)
    for metric in metrics:
        spreads = [values.get(metric.name) for values in found.values()]
        if not _is_hidden(metric.name, spreads):
            table.add_row(metric.label, *(_spread(spread, seeds) for spread in spreads))
    if seeds == 1:
        return table, "one run of each design"
    share = 1 - 0.5 ** (seeds - 1)
    return table, f"median over seeds (lowest..highest: they enclose the true median with {share:.0%})"


def _decoding_rows(document: Document) -> Iterator[tuple[str, ...]]:
    """Yield the rows on the designs' decoding, if it differs."""
    mixed = document.get("mixed_decoding")
    if mixed is not None:
        yield "output", *(own["law"] for own in mixed.values())
        for key in BUDGETS:
            yield f"{key} of all", *(f"{own[key]:,}" for own in mixed.values())


def _is_hidden(name: str, spreads: list[dict[str, Any] | None]) -> bool:
    if name in _HIDDEN_IF_EQUAL:
        return all(spread == spreads[0] for spread in spreads)
    return name in _HIDDEN_AT_0 and all(spread is None or not spread["highest"] for spread in spreads)


def _differences(document: Document, metrics: tuple[Metric, ...]) -> tuple[Table, str]:
    baseline = document["baseline"]
    others = [name for name in document["designs"] if name != baseline]
    entries = {(entry["design"], entry["metric"]): entry for entry in document["paired"]}
    table = numbers_table(f"minus {baseline}", others, _NAME)
    for metric in metrics:
        of_designs = [entries.get((name, metric.name)) for name in others]
        if any(entry is not None and any([entry["difference"], *(entry["ci95"] or ())]) for entry in of_designs):
            table.add_row(metric.label, *(_difference(entry) for entry in of_designs))
    if len(document["seeds"]) > 1:
        other = (document.get("different") or {}).get("requests")
        kind = "differences under the same seed" if other else "paired differences"
        return table, f"mean over seeds of {kind}, and 95% interval (Student's t)"
    legends = {
        "requests": "means over requests have a 95% interval (batch means of the differences by request)",
        "unpaired": "different requests: 95% interval from the intervals of the two runs (MOVER)",
    }
    methods = {entry["method"] for entry in document["paired"]}
    shown = [legend for method, legend in legends.items() if method in methods]
    return table, "one run: " + ("; ".join(shown) or "no intervals")


def _speed_ups(document: Document) -> tuple[Table, str]:
    """Return the table of speed-ups by speculation: bold where the interval excludes 1."""
    entries = document["speed_up"]
    titles = [f"{entry['design']} / {entry['against']}" for entry in entries]
    table = numbers_table("speed-up by speculation", titles, _NAME)
    for gain, label in _GAINS.items():
        table.add_row(label, *(_gain(entry.get(gain)) for entry in entries))
    legend = f"times as fast, and 95% interval ({_PAIRED_BY[len(document['seeds']) > 1]})"
    for title, entry in zip(titles, entries, strict=True):
        if entry["also_differs"]:
            legend += f"\n{title}: not by speculation alone: they also differ in {_key_list(entry['also_differs'])}"
    return table, legend


def _gain(gain: dict[str, Any] | None) -> Text:
    if gain is None:
        return Text("-")
    text, interval = f"{gain['speed_up']:.3g}", gain["ci95"]
    if interval is None:
        return Text(text)
    clear = interval[0] > 1 or interval[1] < 1
    return Text(f"{text} ({interval[0]:.3g}..{interval[1]:.3g})", style="bold" if clear else "")


def _key_list(keys: list[str]) -> str:
    return ", ".join(keys[:_MOST_KEYS]) + (f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else "")


def _attribution(document: Document) -> tuple[Table, str]:
    found = document["attribution"]
    first: dict[str, dict[str, float]] = next((one for one in found.values() if one), {})
    known = {name for one in found.values() for parts in one.values() for name in parts}
    names = [name for name in ("e2e_ms", *(f"{part}_ms" for part in PARTS)) if name in known]
    titles = [name.removesuffix("_ms").replace("e2e", "E2E") for name in names]
    table = numbers_table("time spent, ms", ["design", *titles], _NAME)
    table.columns[1].justify = "left"
    for at in first:
        for number, (design, one) in enumerate(found.items()):
            parts = one.get(at, {})
            values = (short(parts[name]) if name in parts else "-" for name in names)
            label = "all requests" if at == "mean" else f"around {at}"
            table.add_row("" if number else label, Text(design), *values)
    return table, "means over all requests, and over those whose rank is within 1% of each percentile of E2E"


def _spread(spread: dict[str, Any] | None, seeds: int) -> str:
    if spread is None:
        return "-"
    value = short(spread["median"])
    return value if seeds == 1 else f"{value} ({short(spread['lowest'])}..{short(spread['highest'])})"


def _difference(entry: dict[str, Any] | None) -> Text:
    """Return a difference with its interval, bold where this excludes 0."""
    if entry is None:
        return Text("-")
    text, interval = f"{_signed(entry['difference'])}", entry["ci95"]
    if interval is not None:
        text += f" ({_signed(interval[0])}..{_signed(interval[1])})"
    if entry["relative"] is not None:
        text += f" {entry['relative']:+.0%}"
    clear = interval is not None and (interval[0] > 0 or interval[1] < 0)
    return Text(text, style="bold" if clear else "")


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + short(value)
