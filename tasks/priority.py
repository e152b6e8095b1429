"""How urgent a job can be: higher goes first."""

from collections.abc import Sequence

MIN_PRIORITY, MAX_PRIORITY = -10, 10

#: What kombu puts between a queue's name and the rest of a list's.
SEPARATOR = "\x06\x16"

URGENT, NORMAL, LOW = f"{SEPARATOR}urgent", "", f"{SEPARATOR}low"
#: The lists of a queue, by the ends of their names, as workers ask for messages. Those with numbers are
#: Celery's, for messages that are sent with a priority of its own.
LANES = (URGENT, NORMAL, *(f"{SEPARATOR}{number}" for number in (3, 6, 9)), LOW)

#: Of so many messages one comes from another lane than the most urgent that has some.
TURN = 8


def lane_of(priority: int) -> str:
    """Where a job of this priority waits for a worker."""
    if priority == 0:
        return NORMAL
    return URGENT if priority > 0 else LOW


def urgency_of(lane: str) -> int:
    """1: of a job that goes first, -1: of one that can wait."""
    return {URGENT: 1, LOW: -1}.get(lane, 0)


def lanes_in_turn(num_taken: int) -> Sequence[str]:
    """The lanes as they are to be asked for the next message, when so many were taken from the queue.

    So no lane starves: of TURN messages it gets one, or of 5 x TURN if all are full.
    """
    turn, place = divmod(num_taken, TURN)
    if place < TURN - 1:
        return LANES
    first = 1 + turn % (len(LANES) - 1)
    return (*LANES[first:], *LANES[1:first], URGENT)
