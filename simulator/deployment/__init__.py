"""From a scenario to numbers: models on their GPUs, memory, cost models and prices."""
