"""Numbers and prices of the GPUs of a deployment."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cost_models import CostModelError, load_gpu
from simulator.deployment.resolve import Resolved, ResolvedPool
from simulator.errors import InputError
from simulator.scenario.pricing import Pricing
from simulator.scenario.speculation import DraftModel

_KEY = "cost.usd_per_gpu_hour"


def usd_per_hour(resolved: Resolved, pricing: Pricing | None) -> tuple[float, ...] | None:
    """Return the price of all GPUs of each pool for an hour, in the order of the pools; None without prices.

    Raises:
        InputError: a GPU of the deployment has no price, or a price is for an unknown GPU.
    """
    if pricing is None:
        return None
    counts = [gpu_counts(pool) for pool in resolved.pools]
    if isinstance(pricing.usd_per_gpu_hour, float):
        return tuple(sum(own.values()) * pricing.usd_per_gpu_hour for own in counts)
    prices = _by_gpu(pricing.usd_per_gpu_hour, {name for own in counts for name in own})
    for pool, own in zip(resolved.pools, counts, strict=True):
        for name in own:
            if name not in prices:
                raise InputError(
                    f"{_KEY}: has no price of {name}, which pool {pool.name} uses; add it to {', '.join(prices)}"
                )
    return tuple(sum(count * prices[name] for name, count in own.items()) for own in counts)


def gpu_counts(pool: ResolvedPool) -> dict[str, int]:
    """Return the number of GPUs of a pool by the GPU's name, including GPUs that only its draft model uses."""
    counts, settings = {pool.gpu.name: pool.settings.gpus}, pool.settings
    own = pool.service.gpus - settings.gpus
    if own and isinstance(settings.speculation, DraftModel):
        name = pool.gpu.name if settings.speculation.gpu is None else load_gpu(settings.speculation.gpu).name
        counts[name] = counts.get(name, 0) + own
    return counts


def _by_gpu(given: Mapping[str, float], used: Collection[str]) -> dict[str, float]:
    """Return the prices by the names of GPUs: as in `used`, or else as in the shipped files."""
    found: dict[str, float] = {}
    for name, price in given.items():
        try:
            gpu = name if name in used else load_gpu(name).name
        except CostModelError as error:
            raise InputError(f"{_KEY}.{name}: {error}") from None
        if gpu in found:
            raise InputError(f"{_KEY}.{name}: {gpu} has a price already, under another of its names")
        found[gpu] = price
    return found
