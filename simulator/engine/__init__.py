"""The discrete-event engine: clock, source, fleet, replicas. The only folder that imports SimPy."""

from simulator.engine.simulation import Service, simulate

__all__ = ["Service", "simulate"]
