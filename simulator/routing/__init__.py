"""Routers: which replica takes a request. Choices only: no clock."""

from simulator.routing.routers import Arrival, Fleet, Router, build_router

__all__ = ["Arrival", "Fleet", "Router", "build_router"]
