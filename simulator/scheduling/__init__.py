"""Batch policies: which sequences compute how many tokens in the next step. Decisions only: no clock, no SimPy."""

from simulator.scheduling.defaults import schedules_ahead, with_engine_defaults
from simulator.scheduling.exact import ExactVllmPolicy
from simulator.scheduling.limits import Limits, Requeue
from simulator.scheduling.plan import STEADY, Plan, Policy, View
from simulator.scheduling.policies import build_policy, limits, needs_exact
from simulator.scheduling.sequence import ContentSequence, SequenceState, TrackedSequence
from simulator.scheduling.speculation import Speculation
from simulator.scheduling.vllm import VllmPolicy

__all__ = [
    "STEADY",
    "ContentSequence",
    "ExactVllmPolicy",
    "Limits",
    "Plan",
    "Policy",
    "Requeue",
    "SequenceState",
    "Speculation",
    "TrackedSequence",
    "View",
    "VllmPolicy",
    "build_policy",
    "limits",
    "needs_exact",
    "schedules_ahead",
    "with_engine_defaults",
]
