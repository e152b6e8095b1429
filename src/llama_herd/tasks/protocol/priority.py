"""How urgent a job can be: higher goes first."""

from collections.abc import Sequence

MIN_PRIORITY, MAX_PRIORITY = -10, 10

#: Kombu puts this between a queue's name and the rest of a list's name.
SEPARATOR = "\x06\x16"

URGENT, NORMAL, LOW = f"{SEPARATOR}urgent", "", f"{SEPARATOR}low"
#: Celery's own lists, for messages with a priority in Celery's sense, of which 0 is the most urgent: one for
#: each number that its `priority_steps` can name.
CELERY = tuple(f"{SEPARATOR}{number}" for number in range(1, 10))
#: The lists of a queue, by the ends of their names, in the order in which workers ask them.
LANES = (URGENT, NORMAL, *CELERY, LOW)

#: Every eighth message is taken from another lane than the most urgent one.
TURN = 8


def lists_of(queue: str) -> tuple[str, ...]:
    """The lists of a queue, its plain one first."""
    return (queue, *(f"{queue}{lane}" for lane in LANES if lane != NORMAL))


def can_wait(priority: int) -> bool:
    """Whether a job of this priority can wait for all others, step by step too."""
    return priority < 0


def lane_of(priority: int) -> str:
    """The lane in which a job of this priority waits."""
    if can_wait(priority):
        return LOW
    return URGENT if priority > 0 else NORMAL


def urgency_of(lane: str) -> int:
    """1 for the urgent lane, -1 for the low one, 0 for all others."""
    return {URGENT: 1, LOW: -1}.get(lane, 0)


def lanes_in_turn(num_taken: int) -> Sequence[str]:
    """The order in which to ask the lanes, after `num_taken` messages of the queue.

    No lane starves: it gets one of TURN messages, or one of 11 x TURN if all lanes are full.
    """
    turn, place = divmod(num_taken, TURN)
    if place < TURN - 1:
        return LANES
    first = 1 + turn % (len(LANES) - 1)
    return (*LANES[first:], *LANES[1:first], URGENT)
