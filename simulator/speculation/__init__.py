"""Speculative decoding: the number of proposed drafts, and the number that the target model accepts. No clock."""

from simulator.speculation.acceptance import Origin, RequestClasses, build_acceptance
from simulator.speculation.length import LengthRule, build_length
from simulator.speculation.runs import AcceptanceLaw

__all__ = ["AcceptanceLaw", "LengthRule", "Origin", "RequestClasses", "build_acceptance", "build_length"]
