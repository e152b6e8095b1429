"""Long answers are made in a thread of their own, one at a time: others have their turn meanwhile."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from llama_herd.tasks.protocol.events import Event, Token

T = TypeVar("T")

#: One thread: each that computes makes all others wait for the interpreter.
_MAKER = ThreadPoolExecutor(1, "long-answers")
#: Scores of a prompt that are still written on the spot.
_FEW = 64


async def make_aside(make: Callable[[], T]) -> T:
    """What `make` returns, made in the thread of long answers."""
    return await asyncio.get_running_loop().run_in_executor(_MAKER, make)


class WholeAnswer:
    """An ASGI response of JSON that is sent piece by piece, as the client takes it."""

    def __init__(self, pieces: Sequence[bytes], headers: Mapping[str, str]) -> None:
        num_bytes = str(sum(map(len, pieces)))
        own = {"content-length": num_bytes, "content-type": "application/json", **headers}
        self._headers = [(name.lower().encode(), value.encode()) for name, value in own.items()]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        *first, last = self._pieces
        for piece in first:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": last, "more_body": False})


def is_long(event: Event) -> bool:
    """Whether it takes long to write what an event says: it has the scores of a whole prompt."""
    return isinstance(event, Token) and len(event.prompt_logprobs or ()) > _FEW
