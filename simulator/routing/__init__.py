"""Routers: which replica takes a request. Choices only: no clock."""

from simulator.routing.routers import Fleet, Router, build_router

__all__ = ["Fleet", "Router", "build_router"]
