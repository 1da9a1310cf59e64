"""The Azure LLM inference traces of 2023 and 2024: wall-clock arrival, prompt and output tokens.

Source: https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceDataset2023.md,
AzureLLMInferenceDataset2024.md).
"""

from __future__ import annotations

import numpy as np

from simulator.workload.formats.cells import Columns, read_cells
from simulator.workload.formats.source import Source
from simulator.workload.formats.values import timestamps_to_ns, token_counts
from simulator.workload.requests import RequestTable
from simulator.workload.tables import make_table

COLUMNS = Columns(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))


def read(source: Source) -> RequestTable:
    """Read the requests of an Azure trace, in file order, with arrivals in ns since 1970.

    Raises:
        InputError: the text is `file:line: column: problem`; also for requests without a generated token.
    """
    arrivals, prompts, outputs = [], [], []
    for cells in read_cells(source, COLUMNS):
        arrivals.append(timestamps_to_ns(cells, "TIMESTAMP"))
        prompts.append(token_counts(cells, "ContextTokens"))
        outputs.append(token_counts(cells, "GeneratedTokens"))
    if not arrivals:
        source.fail("no requests after the header")
    return make_table(np.concatenate(arrivals), np.concatenate(prompts), np.concatenate(outputs))
