"""A server that speaks as vLLM and as llama-server do, and whose tokens follow from the ids before them.

    python -m tests.foreign_server --port 8000 --model tales.gguf

A greedy token depends on the last ids alone, so that a resume can be compared. Rows get their tokens in the
same steps. What a prompt says happens: `<die 5>` kills this process once the row has 5 tokens, `<cut 5>`
closes its connection without an end, but once, `<error 5>` puts an error into its stream, `<hang 5>` gives it
no more tokens, `<end 5>` ends it by half a character. Whoever asks for a form gets the same short JSON.
"""

import argparse
import asyncio
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_herd.model.files.open_model import read_tokens
from llama_herd.model.text.tokenizer import Tokenizer

#: What a prompt may ask for, and after how many tokens.
FAULT = re.compile(r"<(die|cut|error|hang|end) (\d+)>")
#: As many ids tell the next one; one in so many is an end.
NUM_TELLING, ENDS_IN = 8, 97
#: What it says to whoever asks for a form.
ANSWER = '{ "a":\n\n1}'


@dataclass
class ServerOptions:
    """What the server is, as its command line says."""

    model: Path
    port: int
    step_s: float = 0.0
    context: int = 4096
    name: str = "stand-in"
    key: str = ""
    log: Path | None = None
    priorities: bool = False
    loading_s: float = 0.0


@dataclass(eq=False)
class Row:
    """A request that is being answered. `take` is told each token, and why it was the last."""

    body: Mapping[str, Any]
    prompt_ids: list[int]
    max_tokens: int
    take: Callable[["Row", int, str | None], None]
    fault: str = ""
    fault_after: int = -1
    said: list[int] = field(default_factory=list)  # what it says, if that is known
    ids: list[int] = field(default_factory=list)
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_random(self) -> bool:
        return bool(self.body.get("temperature", 1.0))


class ForeignServer:
    """All rows, and the steps in which they get their tokens."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.tokenizer: Tokenizer
        self.tokenizer, _ = read_tokens(options.model)
        self.words = [i for i, piece in enumerate(self.tokenizer.pieces) if re.fullmatch(rb" ?[a-z]+", piece)]
        self.eos_id = min(self.tokenizer.eos_ids, default=-1)
        self.half_id = self.tokenizer.pieces.index(b"\xe2")  # no word
        self.answer_ids = [*self.tokenizer.encode(ANSWER, add_bos=False), self.eos_id]
        self.rows: dict[Row, None] = {}
        self.has_rows = asyncio.Event()
        self.cuts: set[str] = set()
        self.num_cached: set[tuple[int, ...]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready_s = loop.time() + self.options.loading_s
        server = await asyncio.start_server(self.serve, "127.0.0.1", self.options.port)
        self.options.port = server.sockets[0].getsockname()[1]
        print(self.options.port, flush=True)
        while True:
            await self.has_rows.wait()
            for row in list(self.rows):
                self.step(row)
            await asyncio.sleep(self.options.step_s)

    def step(self, row: Row) -> None:
        """Give a row its next token, unless its prompt asks for something else by now."""
        if row.fault_after == len(row.ids) and row.fault != "end":
            if row.fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if row.fault == "cut":
                self.cuts.add(f"<cut {row.fault_after}>")
            if row.fault != "hang":
                row.take(row, -1, row.fault)
                self.drop(row)
            return
        token_id = self.next_id(row)
        row.ids.append(token_id)
        is_end = token_id == self.eos_id and not row.body.get("ignore_eos")
        is_stop = token_id in row.body.get("stop_token_ids", ()) or token_id == self.half_id
        reason = "stop" if is_end or is_stop else "length" if len(row.ids) >= row.max_tokens else None
        row.take(row, token_id, reason)
        if reason:
            self.drop(row)

    def next_id(self, row: Row) -> int:
        if row.fault == "end" and row.fault_after == len(row.ids):
            return self.half_id
        if row.said:
            return row.said[min(len(row.ids), len(row.said) - 1)]
        known = [*row.prompt_ids[-NUM_TELLING:], *row.ids[-NUM_TELLING:]][-NUM_TELLING:]
        drawn = (row.body.get("seed") or 0, len(row.ids)) if row.is_random else ()
        number = hash((*known, *drawn)) % 2**31
        may_end = len(row.ids) >= row.body.get("min_tokens", 0) and not row.body.get("ignore_eos")
        if number % ENDS_IN == 0 and may_end and self.eos_id >= 0:
            return self.eos_id
        return self.words[number // ENDS_IN % len(self.words)]

    def add(
        self, body: Mapping[str, Any], max_tokens: int, take: Callable[[Row, int, str | None], None]
    ) -> Row:
        ids = list(body["prompt"])
        found = FAULT.search(self.tokenizer.decode(ids))
        fault = (found[1], int(found[2])) if found and found[0] not in self.cuts else ("", -1)
        has_form = any(name in body for name in ("structured_outputs", "json_schema", "grammar"))
        row = Row(body, ids, max_tokens, take, *fault, said=self.answer_ids if has_form else [])
        self.rows[row] = None
        self.has_rows.set()
        return row

    def drop(self, row: Row) -> None:
        self.rows.pop(row, None)
        if not self.rows:
            self.has_rows.clear()
        row.has_ended.set()

    def cached(self, ids: list[int]) -> int:
        """How many ids of a prompt were there before, in wholes of 16."""
        ends = range(16, len(ids), 16)
        found = max((end for end in ends if tuple(ids[:end]) in self.num_cached), default=0)
        self.num_cached.update(tuple(ids[:end]) for end in ends)
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)\r\ncontent-length: (\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            await self.answer(head, body, Answerer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, head: str, content: bytes, to: "Answerer") -> None:
        path = head.split()[1]
        if self.options.log is not None and content:
            with self.options.log.open("ab") as log:
                log.write(content + b"\n")
        if asyncio.get_running_loop().time() < self.ready_s:
            to.whole({"error": {"code": 503, "message": "Loading model"}}, 503)
            return
        if path == "/health":
            to.whole({"status": "ok"})
            return
        if self.options.key and f"bearer {self.options.key}" not in head.lower():
            to.whole({"error": {"message": "Unauthorized"}}, 401)
            return
        route = ROUTES.get(path)
        if route is None:
            to.whole({"error": {"message": "Not Found"}}, 404)
            return
        await route(self, json.loads(content or b"{}"), to)

    async def models(self, body: Any, to: "Answerer") -> None:
        facts = {"id": self.options.name, "object": "model", "max_model_len": self.options.context}
        to.whole({"object": "list", "data": [facts]})

    async def props(self, body: Any, to: "Answerer") -> None:
        to.whole(
            {
                "default_generation_settings": {"n_ctx": self.options.context},
                "total_slots": 4,
                "model_path": f"/models/{self.options.name}.gguf",
            }
        )

    async def tokenize(self, body: Any, to: "Answerer") -> None:
        ids = self.tokenizer.encode(body.get("prompt", body.get("content", "")), add_bos=False)
        to.whole({"tokens": ids, "count": len(ids), "max_model_len": self.options.context})

    async def metrics(self, body: Any, to: "Answerer") -> None:
        line = f'vllm:kv_cache_usage_perc{{model_name="{self.options.name}"}} {len(self.rows) / 1000}\n'
        to.send(200, line.encode(), "text/plain")

    async def completions(self, body: Any, to: "Answerer") -> None:
        """As vLLM's: a chunk for the first token, then one for as many as are asked for."""
        if body["model"] != self.options.name:
            to.whole({"error": {"message": "The model does not exist.", "code": 404}}, 404)
            return
        complaint = self._complaint(body, body["max_tokens"])
        if body.get("priority") and not self.options.priorities:
            complaint = "Got priority but Priority scheduling is not enabled."
        if complaint:
            to.whole({"error": {"message": complaint, "type": "BadRequestError", "code": 400}}, 400)
            return
        num_cached = self.cached(body["prompt"])
        if not body.get("stream"):
            await self._scores(body, to)
            return
        to.begin()
        waiting = list[int]()  # drawn, and not sent

        def take(row: Row, token_id: int, reason: str | None) -> None:
            if reason == "error":
                to.event({"error": {"message": "EngineCore is unhappy", "code": 500}})
                to.chunk(b"data: [DONE]\n\n")
            if token_id < 0:
                return
            waiting.append(token_id)
            if not reason and len(row.ids) > 1 and len(waiting) < (body.get("stream_interval") or 1):
                return
            logprobs = None
            if body.get("logprobs") is not None:
                tokens = [f"token_id:{one}" for one in waiting]
                scores, tops = [-0.5] * len(tokens), [{one: -0.5} for one in tokens]
                logprobs = {"tokens": tokens, "token_logprobs": scores, "top_logprobs": tops}
            choice = {
                "index": 0,
                "text": self.tokenizer.decode(waiting),
                "logprobs": logprobs,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": [*waiting],
            }
            waiting.clear()
            to.event({"id": "cmpl-1", "object": "text_completion", "created": 1, "choices": [choice]})
            if reason:
                details = {"cached_tokens": num_cached}
                usage = {"prompt_tokens": len(row.prompt_ids), "prompt_tokens_details": details}
                to.event({"id": "cmpl-1", "choices": [], "usage": usage})
                to.chunk(b"data: [DONE]\n\n")

        row = self.add(body, body["max_tokens"], take)
        await self._until_ended(row, to)
        if row.fault != "cut" or row.fault_after != len(row.ids):
            to.finish()

    async def _scores(self, body: Any, to: "Answerer") -> None:
        """A whole answer of one token, with the scores of the prompt."""
        scores = [{str(one): {"logprob": -1.0, "rank": 1}} for one in body["prompt"]]
        choice = {"index": 0, "finish_reason": "length", "token_ids": [self.words[0]]}
        to.whole({"choices": [{**choice, "prompt_logprobs": [None, *scores[1:]]}]})

    async def completion(self, body: Any, to: "Answerer") -> None:
        """As llama-server's: a chunk as a whole answer."""
        if complaint := self._complaint(body, 0):
            to.whole({"error": {"code": 400, "message": complaint}}, 400)
            return
        num_cached = self.cached(body["prompt"])
        outcome = dict[str, Any]()

        def take(row: Row, token_id: int, reason: str | None) -> None:
            outcome["reason"] = reason

        row = self.add(body, body["n_predict"], take)
        await self._until_ended(row, to)
        if outcome.get("reason") in (None, "cut"):  # or nobody reads on
            return
        if outcome["reason"] == "error":
            to.whole({"error": {"code": 500, "message": "unhappy"}}, 500)
            return
        to.whole(
            {
                "tokens": row.ids,
                "stop": True,
                "stop_type": {"stop": "eos", "length": "limit"}[outcome["reason"]],
                "timings/cache_n": num_cached,
            }
        )

    def _complaint(self, body: Any, max_tokens: int) -> str:
        num = len(body["prompt"]) + max_tokens
        if num > self.options.context:
            return f"This model's maximum context length is {self.options.context} tokens, got {num}."
        wrong = [one for one in body["prompt"] if not 0 <= one < self.tokenizer.vocab_size]
        return f"Token id {wrong[0]} is out of vocabulary" if wrong else ""

    async def _until_ended(self, row: Row, to: "Answerer") -> None:
        """Wait for the end of a row, or until nobody reads what it answers."""
        gone = asyncio.ensure_future(to.reader.read())
        ended = asyncio.ensure_future(row.has_ended.wait())
        await asyncio.wait((gone, ended), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        ended.cancel()
        self.drop(row)


@dataclass
class Answerer:
    """Writes the answer on a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def whole(self, content: Any, status: int = 200) -> None:
        self.send(status, json.dumps(content).encode())

    def send(self, status: int, content: bytes, kind: str = "application/json") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
        self.writer.write(head.encode() + content)

    def begin(self) -> None:
        head = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.writer.write(b"HTTP/1.1 200 OK\r\n" + head)

    def event(self, content: Any) -> None:
        self.chunk(b"data: " + json.dumps(content).encode() + b"\n\n")

    def chunk(self, content: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(content), content))

    def finish(self) -> None:
        self.writer.write(b"0\r\n\r\n")


ROUTES: dict[str, Callable[[ForeignServer, Any, Answerer], Awaitable[None]]] = {
    "/v1/models": ForeignServer.models,
    "/props": ForeignServer.props,
    "/tokenize": ForeignServer.tokenize,
    "/metrics": ForeignServer.metrics,
    "/v1/completions": ForeignServer.completions,
    "/completion": ForeignServer.completion,
}


def read_options() -> ServerOptions:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="whose tokenizer it has")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.0, help="time between two tokens of a row")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--name", default="stand-in")
    parser.add_argument("--key", default="", help="the key that requests must bring")
    parser.add_argument("--log", type=Path, help="a file for all bodies of requests, a line each")
    parser.add_argument("--priorities", action="store_true", help="whether requests may have priorities")
    parser.add_argument("--loading-s", type=float, default=0.0, help="how long it says that it loads")
    return ServerOptions(**vars(parser.parse_args()))


if __name__ == "__main__":
    asyncio.run(ForeignServer(read_options()).run())
