"""Requests of the benchmarks that rows of speculative decoding name. Each assumption is printed with the results."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.scenario.lengths import Fixed, Lengths
from simulator.validation.assumptions import Clients, output_law, prompt_law, quantile_law
from simulator.validation.setting import Load


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Lengths and load, and the assumptions about them in words. `max_num_seqs` is the server's, if it is known."""

    prompt_tokens: Lengths
    output_tokens: Lengths
    load: Load
    assumption: str
    max_num_seqs: int | None = None


#: Number of measured requests: for each client, and at least in all; MT-Bench has 80 first turns.
_PER_CLIENT, _LEAST = 10, 80
#: Requests of the batch in which accepted drafts are counted; it takes as many steps as one request.
_BATCH = 256
#: AccelMark's suites (FreedomIntelligence/AccelMark, suites/*/suite.json): quantiles of prompts and outputs, the cap of
#: outputs, and the number of requests that its offline runs send at once (`n_requests` and elapsed time of its
#: results). Those of suite A are the first 100 of its dataset, with 255 + 344 tokens on average by the rates and the
#: elapsed time of the run on H100: the dataset's quantiles of prompts (120, 280, 580, 2100) and median of outputs (310)
#: were scaled to these means.
_SUITES = {
    "suite_A": (((0.25, 72), (0.5, 168), (0.75, 348), (0.99, 1260)), ((0.5, 350), (0.99, 1200)), 512, 100),
    "suite_D": (((0.25, 32202), (0.5, 32705), (0.75, 33290), (0.99, 35768)), None, 256, 50),
}
#: max_num_seqs of AccelMark's servers.
_SUITE_SEQS = 512
#: Mean tokens of prompts and outputs, by the beginning of the dataset's name.
_DATASETS = {
    "mtbench": (76, 207, "MT-Bench of 76 + 207 tokens (80 first turns at 47.09 and 128.64 tokens/s, vllm#16035)"),
    "sharegpt": (161, 338, "ShareGPT of 161 + 338 tokens (means of the vLLM paper, SOSP '23)"),
}


def offline(provenance: str) -> Benchmark | None:
    """Return the suite of AccelMark that the provenance names, sent all at once; None if it names no known suite."""
    for name, (prompts, outputs, cap, requests) in _SUITES.items():
        if name in provenance:
            return Benchmark(
                prompt_tokens=quantile_law(prompts),
                output_tokens=Fixed(cap) if outputs is None else quantile_law(outputs, cap),
                load=Load(requests),
                assumption=f"{requests} requests of AccelMark's {name} at once, whatever the client's label",
                max_num_seqs=_SUITE_SEQS,
            )
    return None


def in_one_batch(dataset: str, model: str) -> Benchmark:
    """Return the requests of one client, sent all at once, for metrics that do not depend on arrivals and batches."""
    one = closed_loop(dataset, 1, model)
    said = f"acceptance length: of {_BATCH} requests in one batch, on which it does not depend"
    return replace(one, load=Load(_BATCH), assumption=said)


def closed_loop(dataset: str, concurrency: int, model: str) -> Benchmark:
    """Return `concurrency` clients with the lengths of a dataset; those of MT-Bench if it is not known."""
    plain = dataset.lower().replace("-", "").replace("_", "").replace(" ", "")
    known = next((name for name in _DATASETS if plain.startswith(name)), "mtbench")
    prompt, output, said = _DATASETS[known]
    if not plain.startswith(known):
        said = f"{dataset or 'unstated'} taken to be as long as {said}"
    clients = Clients(concurrency, equal=False)
    requests = max(_PER_CLIENT * concurrency, _LEAST) + concurrency
    return Benchmark(
        prompt_tokens=prompt_law(prompt, model, clients, shared=False),
        output_tokens=output_law(output, clients),
        load=Load(requests, concurrency=concurrency, warmup=concurrency),
        assumption=f"lengths: {said}",
    )
