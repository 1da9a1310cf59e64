"""Simulation of scenarios: single runs, replications, dry runs, and lists of the built-in names."""
