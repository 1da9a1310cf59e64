"""Measured serving runs, simulated again: how far predictions are from what was measured."""
