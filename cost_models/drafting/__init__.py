"""Speculative decoding: models that propose drafts, and what proposing and verifying cost."""
