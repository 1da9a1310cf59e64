"""Results of `vllm bench serve`: the load, the server and what was measured."""
