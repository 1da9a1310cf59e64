"""The discrete-event engine: clock, source, fleet, replicas. The only folder that imports SimPy."""

from simulator.engine.service import Service
from simulator.engine.simulation import simulate

__all__ = ["Service", "simulate"]
