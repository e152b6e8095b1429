"""How hosts answer a webhook: whatever they send, a try has an outcome, after a bounded number of bytes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from llama_herd.tasks.webhooks.connector import Connector
from llama_herd.tasks.webhooks.post import PostOutcome, post
from tests.chaos.harness.patience import PATIENCE_S

LINE = b"HTTP/1.1 %d x\r\n"
OK = b"HTTP/1.1 200 OK\r\n\r\n"
TOO_LONG = "the answer's head, with what comes before it, has more than 16384 bytes"
NO_HTTP = "the answer is no HTTP"

#: What a host sends: once, and then over and over until it is cut off.
ENDLESS: Mapping[str, tuple[bytes, bytes, str]] = {
    "answers that are none yet": (b"", LINE % 100 + b"\r\n", TOO_LONG),
    "other answers that are none yet": (b"", LINE % 103 + b"Link: </x>\r\n\r\n", TOO_LONG),
    "headers": (LINE % 200, b"a: b\r\n", TOO_LONG),
    "headers of an answer that is none yet": (LINE % 102, b"a: b\r\n", TOO_LONG),
    "a header": (LINE % 200 + b"a: ", b"x", TOO_LONG),
    "folded lines": (LINE % 200 + b"a: b\r\n", b" c\r\n", TOO_LONG),
    "a reason": (b"HTTP/1.1 200 ", b"x", TOO_LONG),
    "line ends": (b"", b"\r\n", NO_HTTP),
    "no HTTP": (b"", b"\0\xff", NO_HTTP),
    "a body": (LINE % 200 + b"Content-Length: 99999999999\r\n\r\n", b"x" * 4096, ""),
    "chunks": (LINE % 200 + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", ""),
    "a body of a failure": (LINE % 500 + b"\r\n", b"x" * 4096, "HTTP 500"),
}


@asynccontextmanager
async def host(first: bytes, more: bytes = b"") -> AsyncIterator[str]:
    """The address of a host that answers so."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            while more:
                writer.write(more * (4096 // len(more)))
                await writer.drain()
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"


async def outcome_of(url: str, timeout_s: float = PATIENCE_S) -> PostOutcome:
    return await post(Connector(allows_private=True), url, {}, b"{}", timeout_s)


@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_ends_is_read_up_to_a_bound(name: str) -> None:
    """It ends by its bytes, not by its time."""
    first, more, error = ENDLESS[name]

    async def ask() -> PostOutcome:
        async with host(first, more) as url:
            return await outcome_of(url)

    assert asyncio.run(ask()).error == error


def test_a_few_answers_that_are_none_yet_come_before_one() -> None:
    async def ask() -> PostOutcome:
        async with host((LINE % 103 + b"Link: </x>\r\n\r\n") * 20 + OK) as url:
            return await outcome_of(url)

    assert not asyncio.run(ask()).error


def test_a_drip_ends_by_its_time() -> None:
    async def ask() -> PostOutcome:
        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.CancelledError):
                for _ in range(1000):
                    writer.write(LINE % 100 + b"\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.01)
            writer.close()

        async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
            return await outcome_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", 0.1)

    assert asyncio.run(ask()) == PostOutcome("no answer within 0.1 s", is_silent=True)


def damaged(rng: Random) -> bytes:
    """An answer to which something was done."""
    answer = bytearray(
        (LINE % rng.choice((100, 101, 103, 200, 204, 301, 410, 500, 999)) + b"A: b\r\n\r\n") * 2 + OK
    )
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(answer))
        match rng.randrange(4):
            case 0:
                answer[place] = rng.randrange(256)
            case 1:
                del answer[place : place + rng.randrange(20)]
            case 2:
                answer[place:place] = rng.randbytes(rng.randrange(9))
            case 3:
                answer[place:place] = answer[: rng.randrange(len(answer))]
    return bytes(answer)


@pytest.mark.long
def test_every_damaged_answer_has_an_outcome() -> None:
    rng = Random(1)

    async def ask() -> None:
        for _ in range(150):
            async with host(damaged(rng)) as url:
                assert isinstance(await outcome_of(url), PostOutcome)

    asyncio.run(ask())


@pytest.mark.parametrize(
    "name", ["a..b", ".", "..", "a" * 64, f"{'a' * 64}.example", "-", "_", "a.", "1.2.3", "0x7f.1"]
)
def test_every_name_of_a_host_has_an_outcome(name: str) -> None:
    found = asyncio.run(post(Connector(allows_private=False), f"https://{name}/", {}, b"{}", PATIENCE_S))
    assert found.error
