"""Logs of a run: requests, steps, transfers, and recordings of every step."""
