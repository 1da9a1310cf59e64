"""The requests of a measured run, drawn as its rows describe them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.common.randomness import stream
from simulator.scenario.lengths import Lengths
from simulator.validation.setting import Detail, Load, Setting
from simulator.workload.lengths import draw_latent, lengths
from simulator.workload.requests import ClosedLoop as Clients
from simulator.workload.requests import Ints, RequestTable
from simulator.workload.tables import NS, make_table


def requests_of(stages: Sequence[Setting], seed: int) -> RequestTable:
    """Return the requests of all stages; a request's class is its stage. A stage begins when the previous one ends."""
    details = [stage.load.detail for stage in stages if stage.load.detail is not None]
    if details:
        return _recorded(details)
    arrivals, prompts, outputs, numbers, begin_ns = [], [], [], [], 0
    for number, stage in enumerate(stages):
        load = stage.load
        times, length_ns = _arrivals(load, seed, number)
        arrivals.append(times + begin_ns)
        begin_ns += length_ns
        prompts.append(_draw(stage.prompt_tokens, seed, "prompt", 0 if stage.prompt_pool else number, _prompts(stage)))
        outputs.append(_draw(stage.output_tokens, seed, "output", number, load.requests))
        numbers.append(np.full(load.requests, number))
    of_prompt = [_prompt_order(stage, seed) for stage in stages]
    arrival_ns, output_tokens = np.concatenate(arrivals), np.concatenate(outputs)
    pool = stages[0].prompt_pool
    prompt_id = np.concatenate(of_prompt) if pool is not None else None
    prompt_tokens = np.concatenate([drawn[order] for drawn, order in zip(prompts, of_prompt, strict=True)])
    concurrency = stages[0].load.concurrency
    table = replace(
        make_table(arrival_ns, prompt_tokens, output_tokens),
        max_tokens=output_tokens,
        class_id=np.concatenate(numbers),
        class_names=tuple(f"stage {number}" for number in range(len(stages))),
        closed_loop=None if concurrency is None else Clients(concurrency, np.zeros(len(arrival_ns), np.int64)),
    )
    if pool is not None and prompt_id is not None:
        shared = np.minimum(pool.shared_prefix_tokens, prompt_tokens)
        table = replace(table, prompt_id=prompt_id, prefix_id=prompt_id % pool.groups, prefix_tokens=shared)
    limit = stages[0].load.limit
    return table if limit is None else replace(table, max_concurrency=limit)


def _recorded(stages: Sequence[Detail]) -> RequestTable:
    """Return the requests as they were recorded."""
    columns = [(stage.sent_ns, stage.prompt_tokens, stage.output_tokens) for stage in stages]
    sent, prompts, outputs = (np.concatenate(column).astype(np.int64) for column in zip(*columns, strict=True))
    numbers = np.repeat(np.arange(len(stages)), [len(stage.sent_ns) for stage in stages])
    order = np.argsort(sent, kind="stable")
    table = replace(
        make_table(sent[order], prompts[order], outputs[order]),
        max_tokens=outputs[order],
        class_id=numbers[order],
        class_names=tuple(f"part {number}" for number in range(len(stages))),
    )
    limit = stages[0].concurrency
    return table if limit is None else replace(table, max_concurrency=limit)


def _arrivals(load: Load, seed: int, number: int) -> tuple[Ints, int]:
    """Return the arrival times of a stage, and its duration; gaps are scaled so that the last arrival is at its end."""
    if load.rate is None:
        return np.zeros(load.requests, np.int64), 0
    random = stream(seed, f"validation.arrivals.{number}")
    if load.burstiness == 1:
        gaps = random.standard_exponential(load.requests)
    else:
        gaps = random.standard_gamma(load.burstiness, load.requests)
    length_ns = load.duration_ns or round(load.requests / load.rate * NS)
    times = np.cumsum(gaps)
    return np.rint(times * (length_ns / max(times[-1], 1e-300))).astype(np.int64), length_ns


def _prompts(stage: Setting) -> int:
    return stage.load.requests if stage.prompt_pool is None else stage.prompt_pool.prompts


def _prompt_order(stage: Setting, seed: int) -> Ints:
    """Return the prompt of each request of a stage: those of the pool, shuffled once and cycled; else its own."""
    count = stage.load.requests
    if stage.prompt_pool is None:
        return np.arange(count)
    prompts = stage.prompt_pool.prompts
    return stream(seed, "validation.prompt_order").permutation(prompts)[np.arange(count) % prompts]


def _draw(law: Lengths, seed: int, side: str, number: int, count: int) -> Ints:
    return lengths(law, draw_latent(law, stream(seed, f"validation.{side}.{number}"), count))
