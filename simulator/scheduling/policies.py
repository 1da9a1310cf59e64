"""The built-in batch policies, by the name that a scenario gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from simulator.scenario.schedulers import Scheduler
from simulator.scenario.schema import Pool
from simulator.scheduling.distserve import DistServePolicy
from simulator.scheduling.limits import Limits
from simulator.scheduling.orca import OrcaPolicy
from simulator.scheduling.plan import Policy
from simulator.scheduling.prefill_first import PrefillFirstPolicy
from simulator.scheduling.sarathi import SarathiPolicy
from simulator.scheduling.setup import PolicySetup
from simulator.scheduling.sglang import SglangPolicy
from simulator.scheduling.speculation import Speculation
from simulator.scheduling.static import StaticPolicy
from simulator.scheduling.tensorrt_llm import TensorRtLlmPolicy
from simulator.scheduling.vllm import VllmPolicy
from simulator.scheduling.vllm_explicit import ExplicitVllmPolicy
from simulator.scheduling.vllm_settings import needs_explicit as vllm_needs_explicit
from simulator.scheduling.vllm_settings import vllm_limits


class Entry(NamedTuple):
    """A policy: its constructors for the lazy and the explicit batch, and the limits of its settings.

    `needs_explicit` returns the setting of a pool, as `key: value`, that the lazy batch does not support, or None.
    """

    build: Callable[[PolicySetup], Policy]
    limits: Callable[[Any], Limits]
    build_explicit: Callable[[PolicySetup], Any] | None = None
    needs_explicit: Callable[[Pool], str | None] = lambda pool: None


def changes(kind: Any) -> Entry:
    """Return the entry of a policy class whose plans are changes, which both batches support."""
    return Entry(lambda setup: kind(setup.settings, setup.kv_blocks), kind.limits, needs_explicit=_speculation)


def _speculation(pool: Pool) -> str | None:
    """Return the speculation of a pool, if it has any, as a setting that needs the explicit batch."""
    return None if pool.speculation is None else f"scheduler.policy: {pool.scheduler.TAG} with speculation"


POLICIES: dict[str, Entry] = {
    "vllm": Entry(VllmPolicy, vllm_limits, ExplicitVllmPolicy, vllm_needs_explicit),
    "sglang": changes(SglangPolicy),
    "tensorrt_llm": Entry(TensorRtLlmPolicy, TensorRtLlmPolicy.limits, needs_explicit=_speculation),
    "static": changes(StaticPolicy),
    "orca": changes(OrcaPolicy),
    "prefill_first": changes(PrefillFirstPolicy),
    "sarathi": changes(SarathiPolicy),
    "distserve": changes(DistServePolicy),
}


def build_policy(setup: PolicySetup, explicit: bool = False) -> Any:
    """Build the policy of the settings, for the lazy or the explicit batch."""
    entry = POLICIES[setup.settings.TAG]
    build = entry.build_explicit if explicit and entry.build_explicit is not None else entry.build
    return build(setup)


def limits(settings: Scheduler) -> Limits:
    """Return the limits of the settings of any scheduler."""
    return POLICIES[settings.TAG].limits(settings)


def needs_explicit(pool: Pool) -> str | None:
    """Return the setting of a pool, as `key: value`, that only the explicit batch supports; None if there is none."""
    return POLICIES[pool.scheduler.TAG].needs_explicit(pool)


def speculation_of(pool: Pool) -> Speculation | None:
    """Return the speculation of a pool as its scheduler sees it."""
    settings = pool.speculation
    if settings is None:
        return None
    hashing = limits(pool.scheduler).lookahead_hashing
    return Speculation(settings.TAG, settings.num_speculative_tokens, hashing)
