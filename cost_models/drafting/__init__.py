"""Speculative decoding: models that propose drafts, and the costs of proposing and verifying."""
