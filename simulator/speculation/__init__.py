"""Speculative decoding: how many drafts are proposed, and how many of them the target model accepts. No clock."""
