"""Routers and deciders: which replica takes a request, and where its prompt is computed. Choices only: no clock."""

from simulator.routing.deciders import Decider, Prospect, build_decider
from simulator.routing.routers import Arrival, Fleet, Router, build_router

__all__ = ["Arrival", "Decider", "Fleet", "Prospect", "Router", "build_decider", "build_router"]
