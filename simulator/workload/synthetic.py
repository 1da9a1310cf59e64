"""Synthetic workloads: requests drawn from distributions, each quantity from its own random stream.

The first N requests do not depend on the number of requests, so that a limit, a longer run and a paired design have the
same ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from simulator.common.notes import Note
from simulator.common.randomness import stream
from simulator.errors import InputError
from simulator.scenario import traffic
from simulator.scenario.lengths import Lengths
from simulator.workload.arrivals import arrivals_before, first_arrivals, think_times
from simulator.workload.lengths import Latent, NormalValues, draw_latent, lengths
from simulator.workload.requests import ClosedLoop, Ints, RequestTable
from simulator.workload.tables import DEFAULT_CLASS, MAX_REQUESTS, make_table

_Classes = Sequence[traffic.RequestClass]
_Quantity = Literal["prompt_tokens", "output_tokens"]


def generate(workload: traffic.Workload, seed: int) -> RequestTable:
    """Draw the requests of a synthetic workload, with `max_tokens` left `UNSET`.

    Raises:
        InputError: two classes have the same name; no requests, or more than can be simulated.
    """
    classes, pool = _classes(workload), workload.prompt_pool
    arrival_ns = _arrivals(workload, seed)
    prompt_of = _prompt_order(pool, seed, len(arrival_ns))
    prompts = len(arrival_ns) if pool is None else pool.prompts
    prompt_class = _draw_classes(classes, seed, prompts)
    class_id = prompt_class if pool is None else prompt_class[prompt_of]
    of_prompts = _latents("prompt_tokens", classes, seed, prompt_class)
    of_outputs = _latents("output_tokens", classes, seed, class_id)
    of_outputs = _correlated(workload.correlation, of_prompts, prompt_of, of_outputs)
    table = make_table(
        arrival_ns,
        _lengths("prompt_tokens", classes, of_prompts, prompts)[prompt_of],
        _lengths("output_tokens", classes, of_outputs, len(arrival_ns)),
    )
    table = replace(
        table,
        class_id=class_id,
        class_names=tuple(entry.name for entry in classes),
        closed_loop=_closed_loop(workload.arrivals, seed, len(arrival_ns)),
    )
    return table if pool is None else _shared(table, pool, prompt_of)


def _classes(workload: traffic.Workload) -> _Classes:
    given = workload.classes or ()
    names = [entry.name for entry in given]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"workload.classes: the name {name!r} is there twice")
    if names:
        return given
    assert workload.prompt_tokens is not None
    assert workload.output_tokens is not None
    return (traffic.RequestClass(DEFAULT_CLASS, 1.0, workload.prompt_tokens, workload.output_tokens),)


def _arrivals(workload: traffic.Workload, seed: int) -> Ints:
    assert workload.arrivals is not None
    if workload.requests is not None:
        return first_arrivals(workload.arrivals, seed, workload.requests)
    assert workload.duration is not None
    return arrivals_before(workload.arrivals, seed, workload.duration)


def _closed_loop(process: traffic.Arrivals | None, seed: int, n: int) -> ClosedLoop | None:
    if not isinstance(process, traffic.ClosedLoop):
        return None
    return ClosedLoop(process.concurrency, think_times(process.think_time, seed, n))


def _prompt_order(pool: traffic.PromptPool | None, seed: int, n: int) -> Ints:
    """Return the number of each request's prompt: its own, or those of the pool, shuffled once and cycled."""
    if pool is None:
        return np.arange(n)
    if pool.prompts > MAX_REQUESTS:
        raise InputError(f"workload.prompt_pool: must have at most {MAX_REQUESTS} prompts, found {pool.prompts}")
    return stream(seed, "workload.prompt_order").permutation(pool.prompts)[np.arange(n) % pool.prompts]


def _draw_classes(classes: _Classes, seed: int, n: int) -> Ints:
    if len(classes) == 1:
        return np.broadcast_to(np.int64(0), n)
    weights = np.cumsum([entry.weight for entry in classes])
    draws = stream(seed, "workload.class").random(n)
    return np.searchsorted(weights[:-1] / weights[-1], draws, side="right")


def _latents(quantity: _Quantity, classes: _Classes, seed: int, class_id: Ints) -> list[tuple[Ints, Latent]]:
    """Return, for each class, its rows in `class_id`, and their latent values.

    A named class has its own stream, so that adding another class does not change its lengths.
    """
    drawn: list[tuple[Ints, Latent]] = []
    for i, entry in enumerate(classes):
        rows = np.flatnonzero(class_id == i)
        suffix = "" if entry.name == DEFAULT_CLASS and len(classes) == 1 else f".{entry.name}"
        law: Lengths = getattr(entry, quantity)
        drawn.append((rows, draw_latent(law, stream(seed, f"workload.{quantity}{suffix}"), len(rows))))
    return drawn


def _lengths(quantity: _Quantity, classes: _Classes, latents: list[tuple[Ints, Latent]], n: int) -> Ints:
    """Return one length for each of `n` rows, by the distribution of its class."""
    tokens = np.empty(n, dtype=np.int64)
    for entry, (rows, latent) in zip(classes, latents, strict=True):
        tokens[rows] = lengths(getattr(entry, quantity), latent)
    return tokens


def _correlated(
    correlation: float, prompts: list[tuple[Ints, Latent]], prompt_of: Ints, outputs: list[tuple[Ints, Latent]]
) -> list[tuple[Ints, Latent]]:
    """Return the latent values of outputs, correlated with those of their prompts by a Gaussian copula."""
    if not correlation:
        return outputs
    of_prompts = np.empty(sum(len(rows) for rows, _ in prompts))
    for rows, latent in prompts:
        of_prompts[rows] = latent.normal()
    own = math.sqrt(1 - correlation**2)
    return [
        (rows, NormalValues(correlation * of_prompts[prompt_of[rows]] + own * latent.normal()))
        for rows, latent in outputs
    ]


def _shared(table: RequestTable, pool: traffic.PromptPool, prompt_of: Ints) -> RequestTable:
    """Return the table with the number of each request's prompt, and the prefix that it shares with its group."""
    if not pool.shared_prefix_tokens:
        return dataclasses.replace(table, prompt_id=prompt_of)
    return dataclasses.replace(
        table,
        prompt_id=prompt_of,
        prefix_id=prompt_of % pool.groups,
        prefix_tokens=np.minimum(pool.shared_prefix_tokens, table.prompt_tokens),
        notes=(*table.notes, *_long_prefix(table, pool)),
    )


def _long_prefix(table: RequestTable, pool: traffic.PromptPool) -> list[Note]:
    """Return a note if half of the prompts or more are not longer than the prefix that they share with their group."""
    whole = int(np.count_nonzero(table.prompt_tokens <= pool.shared_prefix_tokens))
    if 2 * whole < len(table):
        return []
    text = (
        f"workload.prompt_pool.shared_prefix_tokens: {whole} of {len(table)} prompts have no more than "
        f"{pool.shared_prefix_tokens} tokens, so that each is a prefix of the others in its group"
    )
    return [Note("prefix_fills_prompts", text)]
