"""Answers over HTTP, whole and broken, in whatever parts they come."""

import asyncio
import gc
from collections.abc import Callable

import pytest

from llama_herd.worker.foreign.http import Answer, ConnectionLost, Exchange, HttpServer, NotHttp, ServerAway

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n5;x=y\r\ndefgh\r\n0\r\n\r\n"
LONG = b"HTTP/1.1 404 No\r\nContent-Length: 8\r\n\r\nabcdefgh"
OPEN = b"HTTP/1.0 200 OK\r\n\r\nabcdefgh"


def read(parts: list[bytes], take: Callable[[bytes], None] | None = None, *, ends: bool = True) -> Answer:
    """What an exchange makes of an answer that comes so."""

    async def run() -> Answer:
        exchange = Exchange(asyncio.get_running_loop().create_future(), take)
        for part in parts:
            exchange.data_received(part)
        if ends:
            exchange.connection_lost(None)
        return await exchange.done

    return asyncio.run(run())


@pytest.mark.parametrize("answer", [CHUNKED, LONG, OPEN], ids=["chunked", "with a length", "to its end"])
def test_an_answer_is_read_in_any_two_parts(answer: bytes) -> None:
    whole = read([answer])
    assert whole == Answer(404 if answer is LONG else 200, b"abcdefgh")
    for at in range(1, len(answer)):
        assert read([answer[:at], answer[at:]]) == whole


def test_what_comes_before_the_answer_is_passed_over() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    for at in range(1, len(early + LONG)):
        assert read([(early + LONG)[:at], (early + LONG)[at:]]) == Answer(404, b"abcdefgh")


def test_content_is_handed_on_as_it_comes_but_for_an_error() -> None:
    taken: list[bytes] = []
    assert read([CHUNKED], taken.append).content == b""
    assert taken == [b"abcdefgh"]
    assert read([LONG], taken.append).content == b"abcdefgh"
    assert len(taken) == 1


@pytest.mark.parametrize("answer", [b"", CHUNKED[:30], CHUNKED[:-5], LONG[:-1]])
def test_a_connection_that_ends_within_an_answer_is_lost(answer: bytes) -> None:
    with pytest.raises(ConnectionLost):
        read([answer])


@pytest.mark.parametrize(
    "answer",
    [
        *(b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"x" * 70_000),
        *(LONG.replace(b"8", size, 1) for size in (b"", b"-8", b"8x", b"+8", b"8, 8")),
        *(CHUNKED.replace(b"\r\n3", b"\r\n" + size) for size in (b"", b"-3", b"0x3", b"3g")),
    ],
)
def test_what_is_no_answer_is_told(answer: bytes) -> None:
    with pytest.raises(NotHttp):
        read([answer])


def test_an_error_of_who_takes_the_content_ends_the_exchange() -> None:
    def fail(_: bytes) -> None:
        raise ValueError("not this")

    with pytest.raises(ValueError, match="not this"):
        read([CHUNKED], fail)


def test_nobody_at_the_address_is_no_answer() -> None:
    with pytest.raises(ServerAway):
        asyncio.run(HttpServer.at("http://127.0.0.1:9").get("/health", 1.0))


def test_the_key_goes_with_each_request_and_is_not_shown() -> None:
    server = HttpServer.at("https://host/base/", "secret")
    assert (server.host, server.port, server.path) == ("host", 443, "/base/")
    assert b"authorization: Bearer secret\r\n" in server.headers
    assert "secret" not in repr(server)


@pytest.mark.parametrize("num_turns", range(12))
def test_a_request_that_is_cancelled_at_any_moment_is_no_fault_of_the_loop(num_turns: int) -> None:
    """Its connection ends, and nobody waits for the answer: the engine's thread would end by that."""
    faults: list[dict[str, object]] = []

    async def cancel() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            asking = asyncio.ensure_future(HttpServer.at(f"http://127.0.0.1:{port}").post("/", {}))
            for _ in range(num_turns):
                await asyncio.sleep(0.001 * (num_turns > 5))
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            await asyncio.sleep(0.01)  # what the loop still does of it
            gc.collect()

    asyncio.run(cancel())
    assert not faults
