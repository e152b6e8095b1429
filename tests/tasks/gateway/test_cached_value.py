"""Values that many requests want at once."""

import asyncio

import pytest

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.gateway import tenant_client
from llama_herd.tasks.gateway.tenant_client import CachedValue


def test_all_who_wait_for_a_lookup_get_its_error() -> None:
    """Else each would ask in turn a Redis that is away, and the last would wait for all of them."""
    num_asked, away = 0, asyncio.Event()

    async def look_up() -> str:
        nonlocal num_asked
        num_asked += 1
        await away.wait()
        if num_asked == 1:
            raise RedisUnavailable("away")
        return "found"

    async def ask() -> None:
        value = CachedValue(look_up)
        waiting = [asyncio.ensure_future(value()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting.pop().cancel()  # which ends nobody else's
        await asyncio.sleep(0)
        away.set()
        assert {type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)} == {
            RedisUnavailable
        }
        assert await value() == await value() == "found"
        assert num_asked == 2

    asyncio.run(ask())


def test_a_value_is_looked_up_again_once_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    num_asked = 0

    async def look_up() -> int:
        nonlocal num_asked
        num_asked += 1
        return num_asked

    async def ask() -> None:
        value = CachedValue(look_up)
        assert [await value(), await value()] == [1, 1]
        monkeypatch.setattr(tenant_client, "FRESH_S", -1.0)
        assert await value() == 2

    asyncio.run(ask())
