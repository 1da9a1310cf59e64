"""Errors as the public interface raises them: one exception, without the chain of causes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from simulator.errors import InputError, StalledError

P = ParamSpec("P")
T = TypeVar("T")

#: Options of the command, which messages name, and the parameters that they are here.
_OPTION = re.compile(
    r"(?<!\S)--(set|seed|seeds|trace|trace-format|out|steps|baseline|jobs|gpu|model|tensor-parallel|mixed-decoding"
    r"|allow-different)(?![\w-])"
)
_PARAMETERS = {"set": "overrides", "mixed-decoding": "mixed_decoding=True"}


def boundary(function: Callable[P, T]) -> Callable[P, T]:
    """Let the mistakes of the caller, and files that fail, leave `function` as one `InputError` each, a deadlock as a
    `StalledError`: raised here, so that a traceback is as short as can be, and with parameters in the place of the
    command's options."""

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
        raise InputError(_OPTION.sub(_parameter, text)) from None

    return called


def _parameter(found: re.Match[str]) -> str:
    name = found.group(1)
    return _PARAMETERS.get(name, name.replace("-", "_"))


def check_counts(seeds: int, jobs: int) -> None:
    """Verify numbers of seeds and of processes. Raises InputError."""
    for name, value, least in (("seeds", seeds, 1), ("jobs", jobs, -1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least or value == 0:
            also = ", or -1 for all cores" if least < 0 else ""
            raise InputError(f"{name}: expected a whole number of at least 1{also}, found {value!r}")
