"""Repeats a call until Redis takes it."""

from collections.abc import Callable
from time import sleep
from typing import TypeVar

import structlog
from redis.exceptions import ResponseError

from llama_herd.ops.logs import error_name
from llama_herd.tasks.connection.temporary_errors import is_temporary

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: The first pause, which each failure doubles, and the longest one.
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 0.5


class Stopped(Exception):
    """The worker stops, and Redis does not answer."""


def refuse_lasting(error: Exception) -> None:
    """Raise an error that will not pass by itself."""
    if not is_temporary(error):
        raise error


def lasting(answers: list[T | ResponseError]) -> list[T | ResponseError]:
    """Raise the first error among answers that may pass by itself: then all is asked again."""
    for answer in answers:
        if isinstance(answer, ResponseError) and is_temporary(answer):
            raise answer
    return answers


def insist(
    act: Callable[[], T],
    what: str,
    *,
    judge: Callable[[Exception], None] = refuse_lasting,
    pause: Callable[[float], bool | None] = sleep,
) -> T:
    """Call until it succeeds; `what` Redis did not take is logged at the first failure.

    `judge(error)` raises where repeating cannot help. `pause(seconds)` waits, and says whether to stop: then
    this raises Stopped.
    """
    pause_s = MIN_PAUSE_S
    while True:
        try:
            return act()
        except Exception as error:
            judge(error)
            if pause_s == MIN_PAUSE_S:
                log.warning(f"Redis did not take {what}, retrying", error=error_name(error))
        if pause(pause_s):
            raise Stopped
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
