"""Results of `vllm bench serve`: the load, the server and the measurements."""
