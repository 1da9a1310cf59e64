"""Validation: measured serving runs, simulated again, and the errors of the predictions."""
