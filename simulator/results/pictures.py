"""The figures of a results directory, drawn on demand as `latency.png` and `load.png`."""

from __future__ import annotations

from pathlib import Path

from simulator.errors import InputError
from simulator.results.plots import save
from simulator.results.staging import NEW, staging_folder
from simulator.results.store import LATENCY_PICTURE, LOAD_PICTURE, load_results


def write_pictures(folder: str | Path) -> list[Path]:
    """Draw the figures of the results in `folder` into it, and return their paths; earlier ones are replaced.

    Raises:
        InputError: it is not a results directory, is damaged, or cannot be written.
    """
    results = load_results(folder)
    try:
        figures = {LATENCY_PICTURE: results.latency_figure(), LOAD_PICTURE: results.load_figure()}
        with staging_folder(Path(folder).resolve()) as place:
            new = place / NEW
            new.mkdir()
            for name, figure in figures.items():
                save(figure, new / name)
            return [(new / name).replace(Path(folder) / name) for name in figures]
    except (LookupError, ValueError, ArithmeticError, AttributeError, TypeError) as error:
        raise InputError(f"{folder}: damaged results directory: {error!r}; simulate it again") from None
    except OSError as error:
        raise InputError(f"{folder}: figures could not be written: {error.strerror or error}") from error
