"""What is to be known before the numbers of a comparison are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.common.notes import Note
from simulator.comparison.decoding import Decoding
from simulator.comparison.designs import Design
from simulator.comparison.different import Difference
from simulator.comparison.sample import Sample
from simulator.deployment.pricing import gpu_counts
from simulator.scenario.schema import LinearCost, Pool
from simulator.scheduling import limits
from simulator.study.run import Prepared


def notes_on(
    designs: Sequence[Design],
    prepared: Sequence[Prepared],
    mixed: Mapping[str, Decoding] | None,
    different: Difference | None,
) -> list[Note]:
    """What the deployments differ in, where that is easily taken for an effect of the design."""
    found = (
        _different(different),
        _decodings(mixed),
        _gpus(designs, prepared),
        _prices(designs, prepared),
        _async(designs, prepared),
        _cost_models(designs),
    )
    return [note for note in found if note is not None]


def notes_after(designs: Sequence[Design], samples: Sequence[Sequence[Sample]]) -> list[Note]:
    """What the runs tell: `samples[d][s]` is design d under seed s."""
    counts = [[sample.summary["requests"] for sample in own] for own in samples]
    completed = [[each["completed"] for each in own] for own in counts]
    if all(each == completed[0] for each in completed):
        return []
    told = []
    for design, own in zip(designs, counts, strict=True):
        asked = sum(each["submitted"] + each.get("not_arrived", 0) for each in own)
        told.append(f"{design.name} {sum(each['completed'] for each in own):,} of {asked:,}")
    text = f"the designs completed different numbers of requests ({', '.join(told)}): latencies are of those alone, "
    return [Note("completed_differ", text + "and flatter the design that leaves the slow ones out")]


def _different(found: Difference | None) -> Note | None:
    if found is None:
        return None
    text = f"the designs do not have the same {' and '.join(found.kinds)}: "
    text += "what differs between their numbers is not the deployments' alone"
    if found.requests is not None:
        text += "; differences are not paired by request"
    return Note("different", text)


def _decodings(mixed: Mapping[str, Decoding] | None) -> Note | None:
    if mixed is None:
        return None
    told = "; ".join(
        f"{name}: output {own.law}, {own.output_tokens:,} tokens, {own.max_tokens:,} allowed"
        for name, own in mixed.items()
    )
    return Note(
        "mixed_decoding",
        f"the designs do not give the same answers ({told}): latencies, rates and costs differ by that as well",
    )


def _gpus(designs: Sequence[Design], prepared: Sequence[Prepared]) -> Note | None:
    gpus = [sum(service.gpus for service in one.resolved.services) for one in prepared]
    if len(set(gpus)) == 1:
        return None
    differing = [f"{design.name} {count}" for design, count in zip(designs, gpus, strict=True)]
    text = f"the designs have different numbers of GPUs ({', '.join(differing)}): compare the cost of a token, or "
    return Note("gpus_differ", text + "goodput a GPU-hour, before latencies")


def _prices(designs: Sequence[Design], prepared: Sequence[Prepared]) -> Note | None:
    """One price for GPUs of several kinds, in one design or between two."""
    kinds: dict[float, list[str]] = {}
    for design, one in zip(designs, prepared, strict=True):
        price = None if design.scenario.cost is None else design.scenario.cost.usd_per_gpu_hour
        if isinstance(price, float):
            own = kinds.setdefault(price, [])
            own += [name for pool in one.resolved.pools for name in gpu_counts(pool)]
    for price, names in kinds.items():
        different = list(dict.fromkeys(names))
        if len(different) > 1:
            text = f"{', '.join(different)} have one price, {price:g} USD an hour (cost.usd_per_gpu_hour): the cost of "
            return Note("gpus_of_one_price", text + "a token takes them for equally dear; give each its own price")
    return None


def _async(designs: Sequence[Design], prepared: Sequence[Prepared]) -> Note | None:
    """Whether the CPU's time is hidden in some designs alone; where there is none, that makes no difference."""
    deployed = [[pool.settings for pool in one.resolved.pools] for one in prepared]
    ways = [{limits(pool.scheduler).async_scheduling for pool in own if _has_host(pool)} for own in deployed]
    if not all(ways) or all(own == ways[0] for own in ways):
        return None
    told = [f"{design.name} {_way(own)}" for design, own in zip(designs, ways, strict=True)]
    text = f"some of the designs schedule asynchronously ({', '.join(told)}): about the CPU's time of a step lies "
    return Note("async_differs", text + "between them and the others")


def _way(asynchronous: set[bool]) -> str:
    return "in part" if len(asynchronous) > 1 else "yes" if True in asynchronous else "no"


def _has_host(pool: Pool) -> bool:
    return pool.cost_model.host not in (0, "none")


def _cost_models(designs: Sequence[Design]) -> Note | None:
    laws = [tuple(dict.fromkeys(_law(pool) for pool in _pools(design))) for design in designs]
    if all(set(own) == set(laws[0]) for own in laws):
        return None
    differing = [f"{design.name}: {' and '.join(own)}" for design, own in zip(designs, laws, strict=True)]
    text = f"the designs' times are from different cost models ({'; '.join(differing)}): "
    return Note("cost_models_differ", text + "differences are not those of the deployments alone")


def _law(pool: Pool) -> str:
    law = pool.cost_model
    if isinstance(law, LinearCost):
        return f"linear, host {law.host / 1e6:g} ms"
    return f"roofline, calibration {law.calibration}, host {law.host}"


def _pools(design: Design) -> tuple[Pool, ...]:
    return tuple(design.scenario.deployment.pools.values())
