"""Routers and deciders: choose the engine core of a request, and where its prompt is computed. No clock."""

from simulator.routing.deciders import Decider, Prospect, build_decider
from simulator.routing.routers import Arrival, Load, Router, build_router

__all__ = ["Arrival", "Decider", "Load", "Prospect", "Router", "build_decider", "build_router"]
