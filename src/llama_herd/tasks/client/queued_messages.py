"""The messages in a list of a queue, gone through by who looks for those that are to go."""

from collections.abc import Awaitable, Callable, Sequence

from llama_herd.tasks.connection.temporary_errors import is_wrong_type
from llama_herd.tasks.ledger.redis_call import RedisCall, each, raise_if_error, together

#: Messages that one round trip reads.
STEP = 1000


async def remove_messages(name: str, chosen: Callable[[Sequence[bytes]], Awaitable[Sequence[bytes]]]) -> int:
    """Remove messages from a list, and return how many. chosen: a dialogue, those of some that are to go.

    It begins where messages enter: a new one then shifts the others, but hides none.
    """
    num_removed, place = 0, 0
    while messages := await _messages(name, place):
        going = [RedisCall("LREM", (name,), (1, message), int) for message in await chosen(messages)]
        num = sum(await together(going))
        num_removed += num
        place += len(messages) - num
    return num_removed


async def _messages(name: str, place: int) -> list[bytes]:
    """The messages from this place on. Of a key that is no list there are none: it holds no job."""
    call: RedisCall[list[bytes]] = RedisCall("LRANGE", (name,), (place, place + STEP - 1), list)
    (found,) = await each([call])
    return [] if is_wrong_type(found) else raise_if_error(found)
