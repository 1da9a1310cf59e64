"""Resolution of a scenario's deployment into numbers: models on their GPUs, memory, cost models and prices."""
