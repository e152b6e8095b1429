"""The messages in a list of a queue, as who searches them reads them."""

from llama_herd.tasks.connection.temporary_errors import is_wrong_type
from llama_herd.tasks.ledger.redis_call import RedisCall, each, raise_if_error

#: Messages that one round trip reads.
STEP = 1000


async def queued_messages(name: str, place: int) -> list[bytes]:
    """The messages from this place on. Of a key that is no list there are none: it holds no job."""
    call: RedisCall[list[bytes]] = RedisCall("LRANGE", (name,), (place, place + STEP - 1), list)
    (found,) = await each([call])
    return [] if is_wrong_type(found) else raise_if_error(found)
