"""The discrete-event engine: clock, source, cluster, engine cores. The only package that imports SimPy."""

from simulator.engine.service import Service
from simulator.engine.simulation import simulate

__all__ = ["Service", "simulate"]
