"""Routers, which choose the engine core of a request, and deciders between one core and two. No clock."""

from simulator.routing.deciders import Decider, Prospect, build_decider
from simulator.routing.routers import Arrival, Load, Router, build_router

__all__ = ["Arrival", "Decider", "Load", "Prospect", "Router", "build_decider", "build_router"]
