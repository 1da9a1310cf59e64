"""Notes on a comparison: other differences between the designs that can explain differences between their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.common.notes import Note
from simulator.comparison.decoding import Decoding
from simulator.comparison.designs import Design
from simulator.comparison.differences import Differences
from simulator.comparison.sample import Sample
from simulator.deployment.pricing import gpu_counts
from simulator.scenario.schema import LinearCost, Pool
from simulator.scheduling import limits
from simulator.study.prepare import Prepared


def notes_on(
    designs: Sequence[Design],
    prepared: Sequence[Prepared],
    decodings: Mapping[str, Decoding] | None,
    differences: Differences | None,
) -> list[Note]:
    """Return the notes on differences that are easily mistaken for an effect of the design."""
    found = (
        _differences_note(differences),
        _decodings_note(decodings),
        _gpus_note(designs, prepared),
        _prices_note(designs, prepared),
        _async_note(designs, prepared),
        _cost_models_note(designs),
    )
    return [note for note in found if note is not None]


def notes_after(designs: Sequence[Design], samples: Sequence[Sequence[Sample]]) -> list[Note]:
    """Return the notes on finished runs: `samples[d][s]` is design d under seed s."""
    counts = [[sample.summary["requests"] for sample in own] for own in samples]
    completed = [[each["completed"] for each in own] for own in counts]
    if all(each == completed[0] for each in completed):
        return []
    shares = []
    for design, own in zip(designs, counts, strict=True):
        requests = sum(each["submitted"] + each.get("not_arrived", 0) for each in own)
        shares.append(f"{design.name} {sum(each['completed'] for each in own):,} of {requests:,}")
    text = f"the designs completed different numbers of requests ({', '.join(shares)}): latencies are only of these, "
    return [Note("completed_differ", text + "and look better for a design that does not complete the slow ones")]


def _differences_note(found: Differences | None) -> Note | None:
    if found is None:
        return None
    text = f"the designs do not have the same {' and '.join(found.kinds)}: "
    text += "differences between their results are not due to the deployments alone"
    if found.requests is not None:
        text += "; differences are not paired by request"
    return Note("different", text)


def _decodings_note(decodings: Mapping[str, Decoding] | None) -> Note | None:
    if decodings is None:
        return None
    described = "; ".join(
        f"{name}: output {own.law}, {own.output_tokens:,} tokens, {own.max_tokens:,} allowed"
        for name, own in decodings.items()
    )
    return Note(
        "mixed_decoding",
        f"the designs do not generate the same output ({described}), which changes latencies, rates and costs as well",
    )


def _gpus_note(designs: Sequence[Design], prepared: Sequence[Prepared]) -> Note | None:
    gpus = [sum(service.gpus for service in one.resolved.services) for one in prepared]
    if len(set(gpus)) == 1:
        return None
    differing = [f"{design.name} {count}" for design, count in zip(designs, gpus, strict=True)]
    text = f"the designs have different numbers of GPUs ({', '.join(differing)}): compare the cost of a token, or "
    return Note("gpus_differ", text + "goodput a GPU-hour, before latencies")


def _prices_note(designs: Sequence[Design], prepared: Sequence[Prepared]) -> Note | None:
    """Return a note if GPUs of several kinds have one price, in one design or across designs."""
    kinds: dict[float, list[str]] = {}
    for design, one in zip(designs, prepared, strict=True):
        price = None if design.scenario.cost is None else design.scenario.cost.usd_per_gpu_hour
        if isinstance(price, float):
            own = kinds.setdefault(price, [])
            own += [name for pool in one.resolved.pools for name in gpu_counts(pool)]
    for price, names in kinds.items():
        different = list(dict.fromkeys(names))
        if len(different) > 1:
            text = f"{', '.join(different)} have one price, {price:g} USD an hour (cost.usd_per_gpu_hour), so that the "
            return Note("gpus_of_one_price", text + "cost of a token does not distinguish them; set a price for each")
    return None


def _async_note(designs: Sequence[Design], prepared: Sequence[Prepared]) -> Note | None:
    """Return a note if some designs overlap the CPU's time with the GPU's and others do not. Pools without host time do
    not count."""
    deployed = [[pool.settings for pool in one.resolved.pools] for one in prepared]
    settings = [{limits(pool.scheduler).async_scheduling for pool in own if _has_host(pool)} for own in deployed]
    if not all(settings) or all(own == settings[0] for own in settings):
        return None
    described = [f"{design.name} {_async_label(own)}" for design, own in zip(designs, settings, strict=True)]
    text = f"some of the designs schedule asynchronously ({', '.join(described)}), which shortens their steps "
    return Note("async_differs", text + "by about the CPU's time of a step")


def _async_label(asynchronous: set[bool]) -> str:
    return "in part" if len(asynchronous) > 1 else "yes" if True in asynchronous else "no"


def _has_host(pool: Pool) -> bool:
    return pool.cost_model.host not in (0, "none")


def _cost_models_note(designs: Sequence[Design]) -> Note | None:
    laws = [tuple(dict.fromkeys(_law(pool) for pool in _pools(design))) for design in designs]
    if all(set(own) == set(laws[0]) for own in laws):
        return None
    differing = [f"{design.name}: {' and '.join(own)}" for design, own in zip(designs, laws, strict=True)]
    text = f"the designs' times are from different cost models ({'; '.join(differing)}): "
    return Note("cost_models_differ", text + "differences are not due to the deployments alone")


def _law(pool: Pool) -> str:
    law = pool.cost_model
    if isinstance(law, LinearCost):
        return f"linear, host {law.host / 1e6:g} ms"
    return f"roofline, calibration {law.calibration}, host {law.host}"


def _pools(design: Design) -> tuple[Pool, ...]:
    return tuple(design.scenario.deployment.pools.values())
