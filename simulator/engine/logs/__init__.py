"""What a run writes down: requests, steps, transfers, and recordings of every step."""
