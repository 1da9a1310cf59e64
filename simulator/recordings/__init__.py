"""Recordings of schedulers: reading them, and replaying them step by step."""
