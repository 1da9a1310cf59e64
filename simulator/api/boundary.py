"""Errors of the public Python API: one exception, without a chain of causes, that names Python parameters."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from simulator.errors import InputError, StalledError

P = ParamSpec("P")
T = TypeVar("T")

#: Advice in messages that gives an option with its value, and the same as Python parameters.
_ADVICE = (
    (re.compile(r"--set ([\w.]+) for all\b"), r'overrides={"\1": ...} for all'),
    (re.compile(r"--allow-different (model|weights|kv_cache|workload)\b"), r'allow_different=["\1"]'),
)
#: Other options of the command in messages, which become the names of parameters.
_OPTION = re.compile(
    r"(?<!\S)--(set|seed|seeds|trace|trace-format|out|steps|baseline|jobs|gpu|model|tensor-parallel|mixed-decoding"
    r"|allow-different)(?![\w-])"
)
_PARAMETERS = {"set": "overrides", "mixed-decoding": "mixed_decoding=True"}


def boundary(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function of the API so that mistakes of the caller and failing files raise one `InputError`, and deadlocks
    a `StalledError`.

    The exception is raised here to keep the traceback short, with Python parameters instead of command-line options.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except InputError as error:
            text = str(error)
        except StalledError as error:
            raise StalledError(str(error)) from None
        except OSError as error:
            text = f"{error.filename or 'output'}: {error.strerror or error}"
        raise InputError(_with_parameters(text)) from None

    return called


def _with_parameters(text: str) -> str:
    """Return a message with Python parameters instead of command-line options."""
    for advice, parameters in _ADVICE:
        text = advice.sub(parameters, text)
    return _OPTION.sub(_parameter, text)


def _parameter(found: re.Match[str]) -> str:
    name = found.group(1)
    return _PARAMETERS.get(name, name.replace("-", "_"))


def check_counts(seeds: int, jobs: int) -> None:
    """Verify a number of seeds and a number of processes.

    Raises:
        InputError: a number is not an integer, or is too small.
    """
    for name, value, least in (("seeds", seeds, 1), ("jobs", jobs, -1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least or value == 0:
            also = ", or -1 for all cores" if least < 0 else ""
            raise InputError(f"{name}: expected a whole number of at least 1{also}, found {value!r}")
