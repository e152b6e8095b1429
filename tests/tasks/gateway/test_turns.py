"""How long a body holds up everybody else: nothing of a gateway runs while it reads and checks one.

The time is that of the processor, so that it does not depend on what else runs here.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from math import inf
from time import thread_time
from typing import Any

import pytest

from llama_herd.tasks.protocol.bounded_json import MAX_CONTAINERS, MAX_VALUES
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import Herd

pytestmark = [pytest.mark.redis, pytest.mark.long]

#: What another stream may be delayed by: as long as Python takes to count so far.
COUNT = 4_000_000
MAX_BYTES = 4_194_304
#: Ids of the longest prompt.
MAX_IDS = 65_536


def most_s() -> float:
    """In seconds of this machine's processor, as fast as it is now: a tenth of one, or several."""
    begun_s, total = thread_time(), 0
    for number in range(COUNT):
        total += number
    return thread_time() - begun_s


class Turns:
    """The longest time, in seconds of the processor, between two turns of a gateway's loop."""

    longest_s = 0.0

    num = 0

    async def watch(self) -> None:
        last_s = thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = thread_time()
            self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s
            self.num += 1

    async def pause(self) -> None:
        """Wait until the turn that has begun is counted."""
        until = self.num + 2
        while self.num < until:
            await asyncio.sleep(0)


@contextmanager
def turns(gateway: GatewayThread) -> Iterator[Turns]:
    found = Turns()
    watching = asyncio.run_coroutine_threadsafe(found.watch(), gateway.loop)
    try:
        yield found
    finally:
        asyncio.run_coroutine_threadsafe(found.pause(), gateway.loop).result()
        watching.cancel()


def held_up_s(gateway: GatewayThread, ask: Callable[[], None]) -> float:
    """The least of up to three times: this process may collect the garbage of all tests in the middle."""
    least_s = inf
    for _ in range(3):
        with turns(gateway) as found:
            ask()
        least_s = min(least_s, found.longest_s)
        if least_s < most_s():
            break
    return least_s


def chat(**fields: Any) -> bytes:
    return json.dumps(
        {"messages": [{"role": "user", "content": "x"}], **fields}, separators=(",", ":")
    ).encode()


def filled(unit: str, before: str, after: str, num: int = 0) -> bytes:
    """A body with so many of these; 0: as many as a body has room for."""
    num = num or (MAX_BYTES - len(before) - len(after)) // (len(unit) + 1)
    return (before + ",".join([unit] * num) + after).encode()


PART, CALL = {"type": "text", "text": ""}, {"function": {"arguments": '{"a":[1,2,3]}'}}


def deep() -> str:
    """JSON in a text, which OpenAI's clients send as the arguments of a call."""
    return json.dumps({"a": [[]] * 1_000_000}, separators=(",", ":"))


Bodies = Mapping[str, Callable[[], bytes]]

#: Bodies are made where they are asked for: they are megabytes, and every process of the tests imports this.
ACCEPTED: Bodies = {
    "ids": lambda: filled("2147483647", '{"prompt_ids":[', "]}", MAX_IDS),
    "messages": lambda: filled('{"role":"user","content":"x"}', '{"messages":[', "]}", 4096),
    "parts": lambda: chat(messages=[{"role": "user", "content": [PART] * 250}] * (MAX_CONTAINERS // 252)),
    "calls": lambda: chat(messages=[{"role": "assistant", "tool_calls": [CALL]}] * (MAX_CONTAINERS // 6 - 1)),
    "documents": lambda: chat(documents=[{"a": [{}] * (MAX_CONTAINERS - 8)}]),
    "options": lambda: chat(chat_template_kwargs={"a": [0] * 16_000}),
    "a text": lambda: filled("\\u0041" * 262_144, '{"prompt":"', '"}', 1),
}
REFUSED: Bodies = {
    "fields": lambda: filled('"a":0', "{", "}", MAX_VALUES // 2 + MAX_IDS // 2),
    "notes": lambda: filled('"a":0', '{"prompt":"x","metadata":{', "}}", MAX_VALUES // 2 + MAX_IDS // 2),
    "texts": lambda: filled('""', '{"prompt":"x","sampling":{"stop":[', "]}}", MAX_VALUES + MAX_IDS - 8),
    "numbers": lambda: filled("1e-300", '{"prompt_ids":[', "]}", MAX_VALUES + MAX_IDS - 8),
    "long numbers": lambda: filled("9" * 4300, '{"prompt_ids":[', "]}"),
    "a longer number": lambda: filled("9" * 4_000_000, '{"prompt_ids":[', "]}", 1),
    "a fraction": lambda: filled("1." + "9" * 4_000_000, '{"prompt_ids":[', "]}", 1),
    "objects": lambda: filled("{}", '{"messages":[', "]}"),
    "quotes": lambda: b'"' * MAX_BYTES,
    "backslashes": lambda: b'{"prompt":"' + b"\\\\" * ((MAX_BYTES - 16) // 2) + b'"}',
    "line breaks": lambda: b'{"prompt":"' + b"\\n" * ((MAX_BYTES - 16) // 2) + b'"}',
    "a long text": lambda: filled("x" * (MAX_BYTES - 32), '{"prompt":"', '"}', 1),
    "spaces": lambda: b"{" + b" " * (MAX_BYTES - 8) + b"}",
}
#: What took seconds, or most of one, when it was read first and counted then.
LONGER: Bodies = {
    "fields": lambda: ("{" + ",".join(f'"k{n}":0' for n in range(300_000)) + "}").encode(),
    "biases": lambda: chat(logit_bias=dict.fromkeys(range(300_000), 0)),
    "messages": lambda: filled('{"role":"user","content":"x"}', '{"messages":[', "]}"),
    "parts": lambda: chat(messages=[{"role": "user", "content": [PART] * 39}] * 4000),
    "arrays": lambda: chat(x=[[]] * 1_300_000),
    "arguments": lambda: chat(
        messages=[{"role": "assistant", "tool_calls": [{"function": {"arguments": deep()}}]}]
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_longest_jobs_hold_up_nobody(gateway: GatewayThread, herd: Herd, name: str) -> None:
    body = ACCEPTED[name]()

    def ask() -> None:
        assert gateway.ask("POST", "/v1/jobs", body).status == 202

    assert held_up_s(gateway, ask) < most_s()


@pytest.mark.parametrize("name", ["messages", "parts", "calls", "documents", "options"])
def test_the_longest_chats_hold_up_nobody(gateway: GatewayThread, herd: Herd, name: str) -> None:
    asked = ACCEPTED[name]()[:-1] + b',"model":"tales","stream":true}'

    def ask() -> None:
        with gateway.send("POST", "/v1/chat/completions", asked) as answer:
            assert answer.status == 200

    assert held_up_s(gateway, ask) < most_s()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_holds_up_nobody(gateway: GatewayThread, herd: Herd, name: str) -> None:
    body = REFUSED[name]()

    def ask() -> None:
        assert gateway.ask("POST", "/v1/jobs", body).status in (400, 422)

    assert held_up_s(gateway, ask) < most_s()


@pytest.mark.parametrize("name", LONGER)
def test_what_is_far_too_much_holds_up_nobody(gateway: GatewayThread, herd: Herd, name: str) -> None:
    body = LONGER[name]()

    def ask() -> None:
        refused = gateway.ask("POST", "/v1/chat/completions", body)
        assert (refused.status, refused.error["code"]) == (400, "too_many_values")

    assert held_up_s(gateway, ask) < most_s()


def test_chunks_of_a_byte_each_hold_up_nobody(gateway: GatewayThread, herd: Herd) -> None:
    """All of them come at once."""
    body = b'{"prompt":"' + b"x" * 100_000 + b'"}'
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

    def ask() -> None:
        with closing(gateway.connect()) as connection:
            connection.connect()
            connection.sock.sendall(head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
            assert connection.sock.recv(99).startswith(b"HTTP/1.1 202 ")

    assert held_up_s(gateway, ask) < most_s()
