"""The worst inputs that a gateway lets through, for each of its routes and for what it reads besides."""

import json
import socketserver
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from llama_herd.tasks.gateway.app import ROUTES
from llama_herd.tasks.ledger.dead_letters import MAX_LETTER_BYTES, MAX_LETTERS, DeadLetters
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import MAX_REPORTS, Reports
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.worker_status import WorkerStatus

MAX_BODY_BYTES = 4_194_304
#: What a gateway reads besides requests.
BESIDE = ("lines of a batch", "answers to webhooks")

CHAT: dict[str, Any] = {"model": "tales", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
RESPONSE: dict[str, Any] = {"model": "tales", "input": "x", "max_output_tokens": 1}
COMPLETION: dict[str, Any] = {"model": "tales", "prompt": "x", "max_tokens": 1}
#: Names of one input, and what does it on a stage.
Inputs = Mapping[str, Callable[["Stage"], None]]


@dataclass
class Stage:
    """A gateway with all that is around it. `made`: ids that earlier inputs have made."""

    url: str
    pid: int
    redis: Any
    folder: Path
    made: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """Send a request and read all of its answer; JSON is parsed if it is short."""
        place = urlsplit(self.url)
        connection = HTTPConnection(place.hostname or "", place.port, timeout=120)
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with suppress(HTTPException, OSError):
            connection.request(method, path, raw, headers)
            found = connection.getresponse()
            num_bytes, first = 0, b""
            while part := found.read(1 << 20):
                first, num_bytes = first or part, num_bytes + len(part)
            connection.close()
            if num_bytes < 1 << 20 and found.getheader("content-type", "").startswith("application/json"):
                return json.loads(first)
        return {}

    @property
    def memory_kib(self) -> int:
        return self._status("VmRSS")

    @property
    def peak_kib(self) -> int:
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


#: Values of so many bytes, each of the kind that something takes long to read.
SHAPES: Mapping[str, Callable[[int], str]] = {
    "nested": lambda room: "[" * (room // 2) + "]" * (room // 2),
    "objects": lambda room: "[" + ",".join(["{}"] * (room // 3)) + "]",
    "names": lambda room: "{" + ",".join(f'"{number}":0' for number in range(room // 12)) + "}",
    "escapes": lambda room: '"' + "\\u0041" * (room // 6) + '"',
    "backslashes": lambda room: '"' + "\\\\" * (room // 2) + '"',
    "numbers": lambda room: "[" + ",".join(["1e-300"] * (room // 7)) + "]",
    "a number": lambda room: "9" * room,
    "as much as is counted": lambda room: "[" + ",".join(["1.25"] * 32_000) + "]",
    "a text": lambda room: '"' + "x" * room + '"',
}


def shaped(name: str, fields: Mapping[str, Any]) -> bytes:
    """A body near the limit with these fields, and one of this shape that nobody knows."""
    front = json.dumps({**fields, "x": 0})[:-2]
    return f"{front}{SHAPES[name](MAX_BODY_BYTES - len(front) - 64)}}}".encode()


def bodies(path: str, fields: Mapping[str, Any]) -> Inputs:
    """The inputs of a route that reads JSON."""

    def send(name: str) -> Callable[["Stage"], None]:
        return lambda stage: stage.ask("POST", path, shaped(name, fields))

    return {name: send(name) for name in SHAPES}


def post(path: str, **fields: Any) -> Callable[[Stage], None]:
    return lambda stage: stage.ask("POST", path, fields)


def get(path: str) -> Callable[[Stage], None]:
    """`path` may name what was made before."""
    return lambda stage: stage.ask("GET", path.format(**stage.made))


def answers(path: str, fields: Mapping[str, Any]) -> Inputs:
    """Inputs whose answers are as long as they may be, whole and as streams."""
    return {
        "the longest answer": post(path, **fields),
        "the longest stream": post(path, **fields, stream=True),
    }


MANY_SCORES = {**CHAT, "n": 8, "logprobs": True, "top_logprobs": 20, "max_tokens": 1200}
SCORED_RESPONSE = {**RESPONSE, "top_logprobs": 20, "max_output_tokens": 4096}
#: About as much as a prompt of 300,000 scores has, of 250 bytes each, that are tokens each.
MANY_PROMPTS = {
    **COMPLETION,
    "prompt": ["x" * 250] * 88,
    "n": 8,
    "echo": True,
    "logprobs": 10,
    "max_tokens": 0,
}
ONE_PROMPT = {**COMPLETION, "prompt": "x" * 24_000, "echo": True, "logprobs": 20, "max_tokens": 1}
MANY_TEXTS = {**COMPLETION, "prompt": ["x" * 8000] * 250, "n": 8, "echo": True, "max_tokens": 1}


def keep_response(stage: Stage) -> None:
    stage.made["response"] = stage.ask("POST", "/v1/responses", {**SCORED_RESPONSE, "background": True})["id"]
    read_response("?stream=true")(stage)


#: An item that is a call, whose arguments are JSON by themselves.
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps({"a": list(range(50))})}


def go_on(stage: Stage) -> None:
    """From an answer to the most parts that are sent at once, with as many again, as often as one may."""
    asked = {
        **RESPONSE,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 256}] * 31,
    }
    found = stage.ask("POST", "/v1/responses", asked)
    while "id" in found:
        stage.made["conversation"] = found["id"]
        found = stage.ask("POST", "/v1/responses", {**asked, "previous_response_id": found["id"]})


def read_response(query: str) -> Callable[[Stage], None]:
    return lambda stage: stage.ask("GET", f"/v1/responses/{stage.made.get('response', 'x')}{query}")


def submit_scored(stage: Stage) -> None:
    fields = {"prompt": "x" * 24_000, "model": "tales", "echo": True}
    sampling = {"n": 8, "max_tokens": 800, "logprobs": True, "top_logprobs": 19, "prompt_logprobs": 20}
    stage.made["job"] = stage.ask("POST", "/v1/jobs", {**fields, "sampling": sampling})["id"]
    stage.ask("GET", f"/v1/jobs/{stage.made['job']}/events")


def upload(stage: Stage, content: bytes) -> str:
    line = b"--b\r\nContent-Disposition: form-data; name="
    form = (
        line
        + b'"purpose"\r\n\r\nbatch\r\n'
        + line
        + b'"file"; filename="x.jsonl"\r\n\r\n'
        + content
        + b"\r\n--b--\r\n"
    )
    found = stage.ask("POST", "/v1/files", form, **{"Content-Type": "multipart/form-data; boundary=b"})
    return str(found.get("id", ""))


def run_batch(stage: Stage, content: bytes) -> None:
    """Upload it and wait until the batch has ended."""
    asked = {
        "input_file_id": upload(stage, content),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    stage.made["batch"] = batch = str(stage.ask("POST", "/v1/batches", asked).get("id", ""))
    stage.made["file"] = asked["input_file_id"]
    until_s = monotonic() + 60
    while batch and monotonic() < until_s:
        state = stage.ask("GET", f"/v1/batches/{batch}")
        if state.get("status") in ("completed", "failed", "cancelled", "expired"):
            stage.made["output"] = state.get("output_file_id") or stage.made["file"]
            return


def batch_lines() -> Inputs:
    head = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}

    def send(name: str) -> Callable[["Stage"], None]:
        return lambda stage: run_batch(stage, shaped(name, {**head, "body": CHAT}) + b"\n")

    scored = json.dumps({**head, "body": MANY_SCORES}).encode()
    return {
        **{name: send(name) for name in SHAPES},
        "the longest answer": lambda stage: run_batch(stage, scored),
    }


def told_by_webhook(once: bytes, endless: bytes) -> Callable[[Stage], None]:
    """A job whose webhook goes to a host that answers so."""

    def act(stage: Stage) -> None:
        came = threading.Event()

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(65_536)
                with suppress(OSError):
                    self.request.sendall(once)
                    while endless:
                        self.request.sendall(endless * 1000)
                came.set()

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
            hook = f"http://127.0.0.1:{server.server_address[1]}/"
            stage.ask("POST", "/v1/jobs", {"prompt": "x", "webhook": hook, "webhook_secret": secret})
            came.wait(20)
            server.shutdown()

    return act


def fill_lists(stage: Stage) -> None:
    """As many workers and batches as are listed, with long names."""
    reports = Reports()
    for number in range(MAX_REPORTS):
        status = WorkerStatus(name=f"w{number}", state="ready", model="tales", device="x" * 99, slots=1)
        run_call(stage.redis, reports.report_worker(status))
        batch = BatchStatus(run_id=f"b{number}", state="done", input_name="x" * 200)
        run_call(stage.redis, reports.report_batch(batch))


def show_herd(stage: Stage) -> None:
    fill_lists(stage)
    stage.ask("GET", "/v1/herd")


def drain_nobody(stage: Stage) -> None:
    fill_lists(stage)
    stage.ask("POST", f"/v1/workers/{'w' * 60}/drain")


def clear_stale(stage: Stage) -> None:
    message = Envelope.for_job("x" * 128, "herd.nobody").with_tag(f"{'x' * 128}:1:1")
    for _ in range(20):
        stage.redis.lpush("herd.nobody", *[message] * 1000)
    stage.ask("POST", "/v1/queues/nobody/clear")


def bury(stage: Stage, num: int) -> str:
    """Bury the longest letters, of bytes that are no text; the number of the last."""
    letters, raw = DeadLetters(), b"\xff" * MAX_LETTER_BYTES
    for _ in range(num):
        run_call(stage.redis, letters.bury(raw, queue="herd.nobody", reason="x" * 500, worker="w" * 60))
    return run_call(stage.redis, letters.letters(1))[0].number


def list_letters(stage: Stage) -> None:
    bury(stage, MAX_LETTERS)
    stage.ask("GET", f"/v1/dead?limit={MAX_LETTERS}")


def letter(method: str, rest: str = "") -> Callable[[Stage], None]:
    return lambda stage: stage.ask(method, f"/v1/dead/{bury(stage, 1)}{rest}")


def many_files(stage: Stage) -> None:
    """More files than a page takes, copies of one record, each with a long name."""
    file_id = upload(stage, b"{}")
    record, index = f"herd:default:{{{file_id}}}:file", "herd:default:stored_files"
    stage.redis.hset(record, "name", "x" * 250)
    content, pipe = stage.redis.dump(record), stage.redis.pipeline(transaction=False)
    for number in range(10_000):
        name = f"file-{number:024x}"
        pipe.restore(f"herd:default:{{{name}}}:file", 0, content, replace=True)
        pipe.zadd(index, {name: number})
    pipe.execute()
    stage.ask("GET", "/v1/files?limit=10000")


FORM = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n'
#: The worst inputs of each route, as the application's table has them; a route without a body gets itself.
ROUTE_INPUTS: Mapping[tuple[str, str], Inputs] = {
    ("GET", "/"): {"a path": get("/")},
    ("GET", "/page/{name}"): {"a long name": get(f"/page/{'x' * 8000}")},
    ("GET", "/docs"): {"a path": get("/docs")},
    ("GET", "/openapi.json"): {"a path": get("/openapi.json")},
    ("GET", "/health"): {"a path": get("/health")},
    ("GET", "/health/live"): {"a path": get("/health/live")},
    ("GET", "/health/ready"): {"a path": get("/health/ready")},
    ("GET", "/version"): {"a path": get("/version")},
    ("GET", "/v1/models"): {"a path": get("/v1/models")},
    ("GET", "/v1/models/{model}"): {"a long name": get(f"/v1/models/{'x' * 8000}")},
    ("POST", "/v1/completions"): {
        **bodies("/v1/completions", COMPLETION),
        **answers("/v1/completions", MANY_PROMPTS),
        "the longest answer to one": post("/v1/completions", **ONE_PROMPT),
        "the longest stream of one": post("/v1/completions", **ONE_PROMPT, stream=True),
        "the longest texts": post("/v1/completions", **MANY_TEXTS),
        "a refused product": post("/v1/completions", **{**MANY_PROMPTS, "prompt": ["x" * 250] * 256}),
    },
    ("POST", "/v1/chat/completions"): {
        **bodies("/v1/chat/completions", CHAT),
        **answers("/v1/chat/completions", MANY_SCORES),
        "messages": post("/v1/chat/completions", **{**CHAT, "messages": CHAT["messages"] * 4096}),
        "tools": post(
            "/v1/chat/completions",
            **CHAT,
            tools=[
                {"type": "function", "function": {"name": f"f{n}", "parameters": {"type": "object"}}}
                for n in range(128)
            ],
        ),
        "a schema": post(
            "/v1/chat/completions",
            **CHAT,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"enum": ["(a+)+$" * 30] * 1000}},
            },
        ),
    },
    ("POST", "/v1/responses"): {
        **bodies("/v1/responses", RESPONSE),
        **answers("/v1/responses", SCORED_RESPONSE),
        "items": post("/v1/responses", **{**RESPONSE, "input": [{"role": "user", "content": "x"}] * 4096}),
        "calls": post("/v1/responses", **{**RESPONSE, "input": [CALL] * 4096}),
        "tools": post(
            "/v1/responses",
            **RESPONSE,
            tools=[
                {"type": "function", "name": f"f{n}", "parameters": {"type": "object"}} for n in range(128)
            ],
        ),
        "one in the background": keep_response,
        "a conversation that goes on": go_on,
    },
    ("GET", "/v1/responses/{id}"): {
        "the most scores": read_response(""),
        "the most scores as a stream": read_response("?stream=true"),
    },
    ("GET", "/v1/responses/{id}/input_items"): {
        "the most parts": lambda stage: stage.ask(
            "GET", f"/v1/responses/{stage.made.get('conversation', 'x')}/input_items?limit=100"
        )
    },
    ("POST", "/v1/responses/{id}/cancel"): {
        "the most scores": lambda stage: stage.ask(
            "POST", f"/v1/responses/{stage.made.get('response', 'x')}/cancel"
        )
    },
    ("DELETE", "/v1/responses/{id}"): {
        "the most scores": lambda stage: stage.ask(
            "DELETE", f"/v1/responses/{stage.made.get('response', 'x')}"
        )
    },
    ("POST", "/v1/embeddings"): {
        **bodies("/v1/embeddings", {"model": "tales", "input": "x"}),
        "the longest answer": post("/v1/embeddings", model="tales", input=["x"] * 2048),
        "the longest texts": post("/v1/embeddings", model="tales", input=["x" * 900] * 2048),
        "the most tokens": post("/v1/embeddings", model="tales", input=[[1] * 15] * 2000),
    },
    **{
        ("POST", path): {
            **bodies(path, {"model": "tales", "query": "x", "documents": ["x"]}),
            "the longest answer": post(
                path, model="tales", query="x", documents=["x" * 900] * 2048, return_documents=True
            ),
        }
        for path in ("/v1/rerank", "/v2/rerank", "/rerank")
    },
    ("POST", "/tokenize"): {
        **bodies("/tokenize", {"model": "tales", "prompt": "x"}),
        "the longest prompt": post("/tokenize", model="tales", prompt="x" * 262_144, return_token_strs=True),
    },
    ("POST", "/detokenize"): {
        **bodies("/detokenize", {"model": "tales", "tokens": [1]}),
        "the most tokens": post("/detokenize", model="tales", tokens=[1] * 65_536),
    },
    ("GET", "/tokenizer_info"): {
        "a path": get("/tokenizer_info"),
        "a long name": get(f"/tokenizer_info?model={'x' * 8000}"),
    },
    ("POST", "/v1/jobs"): {
        **bodies("/v1/jobs", {"model": "tales", "prompt": "x"}),
        "the most scores": submit_scored,
    },
    ("GET", "/v1/jobs/{id}"): {"the most scores": get("/v1/jobs/{job}")},
    ("GET", "/v1/jobs/{id}/events"): {"the most scores": get("/v1/jobs/{job}/events")},
    ("DELETE", "/v1/jobs/{id}"): {
        "one that has ended": lambda stage: stage.ask("DELETE", f"/v1/jobs/{stage.made['job']}")
    },
    ("POST", "/v1/jobs/{id}/retry"): {
        "the most scores": lambda stage: stage.ask("POST", f"/v1/jobs/{stage.made['job']}/retry")
    },
    ("POST", "/v1/jobs/{id}/purge"): {
        "the most scores": lambda stage: stage.ask("POST", f"/v1/jobs/{stage.made['job']}/purge")
    },
    ("POST", "/v1/files"): {
        "a file of 64 MiB": lambda stage: stage.made.update(file=upload(stage, b"x" * (64 << 20))),
        "headers without an end": lambda stage: stage.ask(
            "POST",
            "/v1/files",
            b"--b\r\n" + b"a: b\r\n" * 500_000,
            **{"Content-Type": "multipart/form-data; boundary=b"},
        ),
        "many parts": lambda stage: stage.ask(
            "POST", "/v1/files", FORM * 50_000, **{"Content-Type": "multipart/form-data; boundary=b"}
        ),
    },
    ("GET", "/v1/files"): {"as many as there may be": many_files},
    ("GET", "/v1/files/{id}"): {"one": get("/v1/files/{file}")},
    ("GET", "/v1/files/{id}/content"): {"64 MiB": get("/v1/files/{file}/content")},
    ("DELETE", "/v1/files/{id}"): {
        "64 MiB": lambda stage: stage.ask("DELETE", f"/v1/files/{stage.made['file']}")
    },
    ("GET", "/v1/jobs"): {
        "a page": get("/v1/jobs?limit=500"),
        "many notes": get(f"/v1/jobs?{'&'.join(f'metadata={n}={n}' for n in range(1000))}"),
        "a long id": get(f"/v1/jobs?after={'x' * 8000}"),
    },
    ("POST", "/v1/batches"): bodies(
        "/v1/batches", {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"}
    ),
    ("GET", "/v1/batches"): {"a page": get("/v1/batches?limit=100")},
    ("GET", "/v1/batches/{id}"): {
        "one": lambda stage: stage.ask("GET", f"/v1/batches/{stage.made.get('batch', 'x')}")
    },
    ("POST", "/v1/batches/{id}/cancel"): {
        "one": lambda stage: stage.ask("POST", f"/v1/batches/{stage.made.get('batch', 'x')}/cancel")
    },
    ("POST", "/v1/queues/{model}/clear"): {"many messages of ended jobs": clear_stale},
    ("GET", "/v1/dead"): {"as many as there may be": list_letters},
    ("GET", "/v1/dead/{name}"): {"the longest": letter("GET")},
    ("POST", "/v1/dead/{name}/retry"): {"the longest": letter("POST", "/retry")},
    ("DELETE", "/v1/dead/{name}"): {"the longest": letter("DELETE")},
    ("POST", "/v1/queues/{model}/pause"): {"a long name": post(f"/v1/queues/{'x' * 8000}/pause")},
    ("POST", "/v1/queues/{model}/resume"): {"a long name": post(f"/v1/queues/{'x' * 8000}/resume")},
    ("POST", "/v1/workers/{name}/drain"): {"as many workers as are listed": drain_nobody},
    ("POST", "/v1/workers/{name}/resume"): {"a long name": post(f"/v1/workers/{'x' * 8000}/resume")},
    ("GET", "/v1/herd"): {"as many workers and batches as are listed": show_herd},
}
BESIDE_INPUTS: Mapping[str, Inputs] = {
    "lines of a batch": batch_lines(),
    "answers to webhooks": {
        "answers that are none yet": told_by_webhook(b"", b"HTTP/1.1 100 x\r\n\r\n"),
        "a header without an end": told_by_webhook(b"HTTP/1.1 200 x\r\na: ", b"x"),
        "a body without an end": told_by_webhook(b"HTTP/1.1 200 x\r\n\r\n", b"x"),
    },
}


def routes() -> list[tuple[str, str]]:
    """All that the application answers."""
    return [
        (method, route.path) for route in ROUTES for method in sorted(route.methods or ()) if method != "HEAD"
    ]


def entries() -> dict[str, Inputs]:
    """All entries by their names, each with its worst inputs."""
    return {f"{method} {path}": ROUTE_INPUTS[method, path] for method, path in routes()} | dict(BESIDE_INPUTS)
