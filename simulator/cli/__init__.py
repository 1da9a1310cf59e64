"""The command `servesim`.

The package holds the verbs: each reads its options, calls one function, and prints the result. `parser` defines the
options. Heavy packages are imported only when a verb needs them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from simulator.cli.codes import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_INTERRUPTED
from simulator.cli.completion import complete
from simulator.cli.options import named_files
from simulator.cli.parser import parser
from simulator.cli.streams import discard_output, exit_on_sigterm, prepare, print_error
from simulator.common.stdin import stdin_as_file
from simulator.errors import InputError, StalledError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. Bad input prints one line on stderr and returns 2, without a traceback.

    Without arguments it prints its help and returns 0, as git, cargo and docker do.
    """
    # Computations use one core, and idle BLAS threads would take CPU time. Set before numpy is first imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    prepare()
    try:
        with exit_on_sigterm():
            return _run_verb(argv)
    except InputError as error:
        print_error(str(error))
        return EXIT_INPUT
    except StalledError as error:
        print_error(f"deadlock: {error}")
        return EXIT_FAILED
    except MemoryError:
        print_error("there is not enough memory; simulate fewer requests, or fewer runs at a time")
        return EXIT_INPUT
    except UnicodeEncodeError as error:
        print_error(
            f"{error.object!a:.80}: no file can have this name in the encoding {error.encoding}; set LC_ALL=C.UTF-8"
        )
        return EXIT_INPUT
    except KeyboardInterrupt:
        print_error("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it
        return EXIT_DONE
    except OSError as error:
        place = f"{error.filename}: " if error.filename else "output: "
        print_error(f"{place}{error.strerror or error}")
        return EXIT_INPUT
    finally:
        discard_output()


def _run_verb(argv: Sequence[str] | None) -> int:
    """Run the verb that the arguments name; the output, help included, is flushed when this returns or raises."""
    try:
        command = parser()
        if "_ARGCOMPLETE" in os.environ:
            complete(command)
        arguments = command.parse_args(argv)
        with stdin_as_file(named_files(arguments)):
            code: int = arguments.verb(arguments)
        return code
    finally:
        sys.stdout.flush()
