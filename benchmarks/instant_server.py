"""A server that speaks as vLLM and as llama-server do, computes nothing, and gives all rows a token a step.

    python -m benchmarks.instant_server STEP_S

It prints its port. Answers have the fields, and about the length, of those of the real servers.
"""

import asyncio
import json
import re
import sys
from asyncio import Transport
from functools import cache
from typing import Any, ClassVar

#: The id of each token, and its text.
TOKEN_ID, TEXT = 259, " t"
#: What it says of ids of texts: nothing, so that no tokenizer is compared.
NOT_FOUND = 404

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)")


def event(content: Any) -> bytes:
    data = b"data: " + json.dumps(content).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


@cache
def choice_event(finish_reason: str | None, num: int) -> bytes:
    choice = {
        "index": 0,
        "text": TEXT * num,
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": None,
        "token_ids": [TOKEN_ID] * num,
        "prompt_token_ids": None,
    }
    head = {
        "id": f"cmpl-{'0' * 32}",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "instant",
    }
    return event({**head, "choices": [choice], "usage": None})


BEGIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One request. It is a row from its head on, until it has its tokens."""

    rows: ClassVar[dict["Connection", None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self.transport = transport
        self.buffer = b""
        self.num_left = self.num_asked = 0
        self.streams = False
        self.num_gathered, self.interval = 0, 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, content = self.buffer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and len(content) >= (int(length[1]) if length else 0):
            self.buffer = b""
            self.answer(head.split()[1].decode(), json.loads(content or b"{}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.rows.pop(self, None)

    def answer(self, path: str, body: Any) -> None:
        if "prompt" in body and path in ("/v1/completions", "/completion"):
            self.streams = bool(body.get("stream"))
            self.num_asked = self.num_left = body.get("max_tokens") or body["n_predict"]
            self.interval = body.get("stream_interval", 1)
            if self.streams:
                self.transport.write(BEGIN)
            self.rows[self] = None
        elif path == "/health":
            self.whole({})
        elif path == "/v1/models":
            self.whole({"data": [{"id": "instant", "max_model_len": 8192}]})
        elif path == "/props":
            self.whole({"default_generation_settings": {"n_ctx": 8192}, "model_path": "instant"})
        else:
            self.whole({}, NOT_FOUND)

    def whole(self, content: Any, status: int = 200) -> None:
        told = json.dumps(content).encode()
        self.transport.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(told), told))
        self.transport.close()

    def step(self) -> None:
        self.num_left -= 1
        self.num_gathered += 1
        is_first, is_last = self.num_left == self.num_asked - 1, not self.num_left
        if self.streams and (is_first or is_last or self.num_gathered == self.interval):
            told = choice_event("length" if is_last else None, self.num_gathered)
            self.transport.write(told + END if is_last else told)
            self.num_gathered = 0
        if not self.num_left:
            del self.rows[self]
            if not self.streams:
                self.whole({"tokens": [TOKEN_ID] * self.num_asked, "stop_type": "limit"})


async def serve(step_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    next_s = loop.time()
    while True:
        for row in list(Connection.rows):
            row.step()
        next_s = max(next_s + step_s, loop.time())
        await asyncio.sleep(next_s - loop.time())


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
