"""A summary as printed tables of at most 80 columns, in plain text if the output is not a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from simulator.common.console import Screen, numbers_table, short
from simulator.results.latency_table import METRICS, latency_tables
from simulator.results.schedulers import scheduler_rows

Summary = dict[str, Any]

_GROUPS = {"by_class": "class", "by_prompt_bucket": "prompt tokens", "by_output_bucket": "output tokens"}
_OF_GROUPS = ("ttft_ms", "itl_ms", "e2e_ms")


def print_summary(summary: Summary, stream: TextIO | None = None) -> None:
    """Print the result of `summarise` to `stream` (stdout if None)."""
    console = Screen(stream)
    title = f"{summary['scenario']}, seed {summary['seed']}"
    console.print(Text(title + " (interrupted: not complete)" * summary.get("partial", False), style="bold"))
    console.print(_facts(summary))
    for table in _tables(summary):
        console.print()
        console.print(table)
    for warning in summary["warnings"]:
        console.print()
        console.print(Text(f"{warning['code']}: {warning['text']}", style="yellow"))


def _tables(summary: Summary) -> Iterator[Table | Text]:
    if "pools" in summary:
        yield _pools(summary["pools"])
    yield from latency_tables(summary)
    if "attribution" in summary:
        yield _attribution(summary["attribution"])
    for key, title in _GROUPS.items():
        if len(summary.get(key, {})) > 1:
            yield _groups(summary[key], title)


def _facts(summary: Summary) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in _fact_rows(summary):
        table.add_row(name, text)
    return table


def _fact_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    yield from scheduler_rows(summary["schedulers"])
    yield "requests", _requests(summary["requests"])
    yield "duration", f"{short(summary['duration_s'])} s"
    if "throughput" in summary:
        yield "throughput", _throughput(summary["throughput"])
    if "engine" in summary:
        engine = summary["engine"]
        yield "engine", _engine(engine)
        yield "GPU busy", _busy(engine["busy_share"])
        if "estimated_load" in engine:
            yield "load", _load(engine["estimated_load"])
    if "kv" in summary:
        kv = summary["kv"]
        use = f"peak use {kv['peak_use']:.1%}, mean {kv['mean_use']:.1%}"
        if "wasted_share" in kv:
            use += f", {kv['wasted_share']:.1%} of the reserved slots empty"
        yield "KV memory", (f"{kv['blocks']:,} blocks a replica, " if "blocks" in kv else "") + use
    if "prefix_cache" in summary:
        cache = summary["prefix_cache"]
        found = f"hit rate {cache['hit_rate']:.1%} ({cache['hit_tokens']:,} of {cache['queried_tokens']:,} tokens)"
        none = f"no hits in {cache['queried_tokens']:,} tokens looked up"
        yield "prefix cache", found if cache["hit_tokens"] else none
    if "speculation" in summary:
        yield from _speculation(summary["speculation"])
    if "transfer" in summary:
        yield "transfers", _transfer(summary["transfer"])
    if "offload" in summary:
        yield "CPU memory", _offload(summary["offload"])
    if "cost" in summary:
        yield "cost", _cost(summary["cost"])
    if "warmup" in summary:
        warmup = summary["warmup"]
        count, until = f"{warmup['excluded_requests']:,}", f"{short(warmup['cut_s'])} s"
        yield "warm-up", f"{count} completed requests before {until} are not in the latencies ({warmup['rule']})"


def _requests(counts: dict[str, Any]) -> str:
    names = ("completed", "rejected", "expired", "cancelled", "failed", "in_flight", "not_arrived")
    parts = [f"{counts['submitted']:,} submitted"]
    parts += [f"{counts[name]:,} {_spaced(name)}" for name in names if counts.get(name)]
    reasons = [f"{_spaced(name)} {count:,}" for name, count in counts.get("rejected_reasons", {}).items()]
    return ", ".join(parts) + (f" (refused: {', '.join(reasons)})" if reasons else "")


def _speculation(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows on drafted and accepted tokens of each pool that speculates."""
    for name, one in section.get("pools", {"": section}).items():
        yield f"speculation {name}".rstrip(), f"{_drafting(one)}, output {_quality(one)}"
        if "acceptance_length" in one:
            yield "acceptance", _acceptance(one)


def _drafting(one: dict[str, Any]) -> str:
    text = f"{one['method']}, {one['num_speculative_tokens']} drafts"
    if "wasted_token_share" in one:
        text += f", {one['wasted_token_share']:.1%} of computed tokens wasted"
    return text + (f", {one['draft_time_share']:.1%} of busy time drafting" if "draft_time_share" in one else "")


def _quality(one: dict[str, Any]) -> str:
    if one["quality"] == "exact":
        return "exact"
    return f"{one['quality']} ({one['verification']}, total variation {short(one['total_variation'])})"


def _acceptance(one: dict[str, Any]) -> str:
    length, interval = f"length {short(one['acceptance_length'])}", one["ci95"]["acceptance_length"]
    if interval is not None:
        length += f" ({short(interval[0])}..{short(interval[1])})"
    rates = " ".join(f"{each['cumulative']:.1%}" for each in one["per_position"])
    text = f"{length}, {one['draft_acceptance_rate']:.1%} of drafts, by position {rates}"
    text += f"; {short(one['tokens_per_event'])} tokens an event" if "tokens_per_event" in one else ""
    return f"{text}; {_law(one['acceptance'])}"


def _law(law: dict[str, Any]) -> str:
    """Return a description of the scenario's law of acceptance."""
    words = {
        "iid": "iid, alpha {alpha:g}",
        "table": "table {table}" if "table" in law else "rates of the scenario",
        "mixture": "a mixture of laws",
        "by_class": "by class",
        "replay": "recorded in {file}",
    }
    return words[law["law"]].format(**law)


def _transfer(transfer: dict[str, Any]) -> str:
    """Return counts and bytes, and the latencies if any request's KV arrived."""
    text = f"{transfer['arrived']:,} of {transfer['requests']:,}, {short(transfer['bytes'] / 1e9)} GB"
    if transfer["failures"]:
        text += f", {transfer['failures']:,} failed, {transfer['recomputed']:,} prompts recomputed"
    if "exposed_ms" in transfer:
        exposed = transfer["exposed_ms"]
        text += f", prefill to arrival p50 {short(exposed['p50'])} ms, p99 {short(exposed['p99'])} ms"
    return text


def _offload(offload: dict[str, Any]) -> str:
    reloaded = f"{offload['reloaded_tokens']:,} tokens reloaded ({short(offload['read_bytes'] / 1e9)} GB)"
    computed = f"{offload['recomputed_instead_tokens']:,} recomputed instead"
    return f"{reloaded}, {computed}, {short(offload['written_bytes'] / 1e9)} GB written"


def _throughput(rates: dict[str, float]) -> str:
    parts = [
        f"{short(rates['requests_per_s'])} requests/s",
        f"{short(rates['output_tokens_per_s'])} output tokens/s",
        f"{short(rates['total_tokens_per_s'])} total tokens/s",
    ]
    if "goodput_per_s" in rates:
        parts.append(f"goodput {short(rates['goodput_per_s'])} requests/s")
    return ", ".join(parts)


def _engine(engine: dict[str, float]) -> str:
    text = f"{engine['steps']:,} steps, mean batch {short(engine['mean_batch'])}"
    if not engine["preemptions"]:
        return f"{text}, no preemptions"
    preempted = f"{engine['preemptions']:,} preemptions of {engine['preempted_requests']:,} requests"
    return f"{text}, {preempted} ({engine['recomputed_tokens']:,} tokens recomputed)"


def _busy(share: float) -> str:
    return f"a step ran {share:.1%} of the time, whatever its batch size"


def _load(share: float) -> str:
    if share > 1:
        return "above the capacity of full batches"
    return f"about {share:.0%} of the capacity of full batches"


def _cost(cost: dict[str, Any]) -> str:
    pools = ", ".join(f"{name} {short(own['usd'])}" for name, own in cost.get("pools", {}).items())
    text = f"{short(cost['usd'])} USD{f' ({pools})' if pools else ''} for {short(cost['gpu_hours'])} GPU-hours"
    if "usd_per_1k_tokens" not in cost:
        return text
    by_tokens = f"{short(cost['usd_per_1k_tokens'])} USD per 1k tokens"
    by_output = f"{short(cost['usd_per_million_output_tokens'])} USD per million output tokens"
    return f"{text}; at this load, idle time included, {by_tokens}, {by_output}"


def _pools(pools: dict[str, Summary]) -> Table:
    table = numbers_table("pool", ("role", "GPUs", "busy", "mean running", "mean batch", "KV mean", "KV peak"))
    for name, pool in pools.items():
        numbers = (
            f"{pool['gpus']:,}",
            f"{pool['busy_share']:.1%}",
            short(pool["mean_running"]),
            short(pool["mean_batch"]),
        )
        table.add_row(
            Text(name), pool["role"], *numbers, *(f"{pool['kv'][use]:.1%}" for use in ("mean_use", "peak_use"))
        )
    return table


def _attribution(attribution: dict[str, dict[str, float]]) -> Table:
    """Return the table of the parts of E2E, of all requests and of those around each percentile of E2E."""
    names = [name for name in next(iter(attribution.values())) if name.endswith("_ms")]
    titles = ["E2E" if name == "e2e_ms" else name.removesuffix("_ms") for name in names]
    table = numbers_table("time spent, ms", titles)
    for at, parts in attribution.items():
        table.add_row("all requests" if at == "mean" else f"around {at}", *(short(parts[name]) for name in names))
    return table


def _groups(groups: dict[str, Summary], title: str) -> Table:
    columns = [f"{METRICS[metric]} {name}" for metric in _OF_GROUPS for name in ("p50", "p99")]
    table = numbers_table(f"{title}, ms", ("count", *columns))
    for name, blocks in groups.items():
        found = [blocks.get(metric, {}).get(p) for metric in _OF_GROUPS for p in ("p50", "p99")]
        values = ("-" if value is None else short(value) for value in found)
        table.add_row(Text(name), f"{blocks['ttft_ms']['count']:,}", *values)
    return table


def _spaced(name: str) -> str:
    return name.replace("_", " ")
