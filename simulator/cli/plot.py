"""The verb `servesim plot`."""

from __future__ import annotations

import argparse

from simulator.cli.codes import EXIT_DONE
from simulator.common.garbage import no_garbage_collection


def plot(arguments: argparse.Namespace) -> int:
    """Draw the figures of results directories and print the paths of the files."""
    with no_garbage_collection():  # the import of matplotlib creates many objects
        from simulator.results.pictures import write_pictures
    for folder in arguments.folders:
        for path in write_pictures(folder):
            if not arguments.quiet:
                print(path, flush=True)
    return EXIT_DONE
