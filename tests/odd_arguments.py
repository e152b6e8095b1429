"""Odd values for any argument of Python's, and whether an error says which argument they were given as."""

import math
from typing import Any

from llama_herd.errors import HerdError, JobNotFound, RedisUnavailable, WorkerNotFound

#: A number that Python does not write, text that UTF-8 has no bytes for, and values of all other kinds.
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 70, 10**5000, -0.5, math.nan, math.inf, 1e308, 1j),
    *("", "a b", "nan", "\0", "\udcff", "x" * 10_000, b"x", [], [None], {}, {"a": 1}, object(), int),
)
#: What an argument is called in the error of the part that it is.
OTHER_NAMES = {"name": "job_id", "model": "model_name", "code": "error", "job": "prompt"}


def is_told(name: str, error: Exception) -> bool:
    """Whether the error is one of ours, or Python's for a wrong type, that names the argument."""
    is_found_out = isinstance(error, JobNotFound | WorkerNotFound | TimeoutError)  # only Redis knows
    names = (name, OTHER_NAMES.get(name, name))
    is_kind = isinstance(error, HerdError | TypeError) and not isinstance(error, RedisUnavailable)
    return is_found_out or (is_kind and any(one in str(error) for one in names) and len(str(error)) < 2500)


def complain(name: str, odd: object, error: Exception) -> str:
    return f"{name}={ascii(odd)[:40] if type(odd) is not int else 'an int'}: {error!r}"[:300]
