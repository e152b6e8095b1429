"""The watch over a server ends when it is told to, at whatever moment."""

import asyncio
from typing import Any

import pytest

from llama_herd.worker.foreign.watch import ServerWatch


class WellServer:
    """A server that is always well, and answers at once."""

    async def check_health(self) -> None: ...

    async def check_again(self, backend: Any, *, is_back: bool) -> None: ...

    async def kv_cache_usage(self) -> float:
        return 0.0


@pytest.mark.parametrize("num_turns", range(8))
def test_a_cancel_is_not_lost_while_it_begins_to_look(num_turns: int) -> None:
    """As by asyncio.wait_for before Python 3.12."""

    async def ends() -> bool:
        server: Any = WellServer()
        watch = ServerWatch(server, server)
        watching = asyncio.ensure_future(watch.run(lambda: None))
        await _turns(10)  # it rests
        watch.suspect()
        await _turns(num_turns)
        watching.cancel()
        await asyncio.wait([watching], timeout=5)
        return watching.cancelled()

    assert asyncio.run(ends())


async def _turns(num: int) -> None:
    for _ in range(num):
        await asyncio.sleep(0)
