"""Batch policies: which sequences compute how many tokens in the next step. Decisions only: no clock, no SimPy."""

from simulator.scheduling.defaults import schedules_ahead, with_engine_defaults
from simulator.scheduling.limits import Limits, Requeue
from simulator.scheduling.plan import STEADY, Plan, Policy, View
from simulator.scheduling.policies import build_policy, limits, needs_explicit, speculation_of
from simulator.scheduling.sequence import ContentSequence, RankedSequence, SequenceState, TrackedSequence
from simulator.scheduling.setup import NO_CAP, PolicySetup
from simulator.scheduling.speculation import Speculation

__all__ = [
    "NO_CAP",
    "STEADY",
    "ContentSequence",
    "Limits",
    "Plan",
    "Policy",
    "PolicySetup",
    "RankedSequence",
    "Requeue",
    "SequenceState",
    "Speculation",
    "TrackedSequence",
    "View",
    "build_policy",
    "limits",
    "needs_explicit",
    "schedules_ahead",
    "speculation_of",
    "with_engine_defaults",
]
