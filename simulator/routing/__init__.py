"""Routers, which choose the engine core of a request, and deciders between one core and two. No clock."""

from simulator.routing.deciders import Decider, Prospect, build_decider
from simulator.routing.loads import Least, Load, OpenLoads
from simulator.routing.routers import Arrival, Router, build_router

__all__ = [
    "Arrival",
    "Decider",
    "Least",
    "Load",
    "OpenLoads",
    "Prospect",
    "Router",
    "build_decider",
    "build_router",
]
