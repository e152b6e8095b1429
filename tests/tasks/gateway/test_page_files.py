"""The page's files: what is served, to whom, and what they may load."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from llama_herd.tasks import gateway as package
from llama_herd.tasks.gateway.page_files import MEDIA_TYPES, page_files
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import DEFAULT_MAX_TOKENS, SamplingParams
from tests.tasks.gateway.gateway_thread import GatewayThread

FOLDER = Path(package.__path__[0]) / "page"
#: XML's name of a format, which nobody fetches.
SVG = "http://www.w3.org/2000/svg"


@pytest.mark.redis
def test_the_page_is_shown_to_anybody_and_may_load_nothing_from_elsewhere(gateway: GatewayThread) -> None:
    found = gateway.ask("GET", "/")
    assert (found.status, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.split(" ", 1) for part in found.headers["content-security-policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert set(policy.values()) == {"'self'", "'none'"}
    assert found.headers["x-content-type-options"] == "nosniff"
    for name, file in page_files().items():
        served = gateway.ask("GET", f"/page/{name}")
        assert (served.status, served.raw) == (200, file.body)
        assert served.headers["content-type"] == MEDIA_TYPES[name.rpartition(".")[2]]


@pytest.mark.redis
def test_a_file_that_is_known_is_not_sent_again(gateway: GatewayThread) -> None:
    """Also behind a proxy that packs it: nginx makes the tag a weak one."""
    tag = gateway.ask("GET", "/").headers["etag"]
    for told in (tag, f"W/{tag}", f'"older", W/{tag}'):
        found = gateway.ask("GET", "/", headers={"If-None-Match": told})
        assert (found.status, found.raw) == (304, b"")
    assert gateway.ask("GET", "/", headers={"If-None-Match": '"older"'}).status == 200


@pytest.mark.redis
@pytest.mark.parametrize("name", ["none.mjs", "../page_files.py", "..%2fapp.py", "%2e%2e/app.py", ""])
def test_no_other_file_is_served(gateway: GatewayThread, name: str) -> None:
    assert gateway.ask("GET", f"/page/{name}").status == 404


def test_the_files_name_no_other_host_and_each_one_that_they_name_is_there() -> None:
    named = set()
    for name, file in page_files().items():
        text = file.body.decode().replace(SVG, "")
        assert not re.search(r"https?:|['\"(]//|@import|url\(", text), name
        named |= set(re.findall(r"(?:page|\.)/([\w.]+\.(?:mjs|css|svg))", text))
    assert named == set(page_files()) - {"index.html"}


class Inputs(HTMLParser):
    """The attributes of all inputs by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[str, str]] = {}
        self.feed(page_files()["index.html"].body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        assert "style" not in given
        assert not any(name.startswith("on") for name in given)  # the policy would block them
        if tag == "input":
            self.found[given.get("name", given.get("id", ""))] = given


def test_a_parameter_s_bounds_are_those_that_are_checked() -> None:
    inputs = {name: given for name, given in Inputs().found.items() if given["type"] == "number"}
    sampling = SamplingParams.model_json_schema()["properties"]
    job = GenerationJob.model_json_schema()["properties"]
    for name, given in inputs.items():
        schema = {**sampling, "priority": job["priority"]}[name]
        schema = schema.get("anyOf", [schema])[0]
        most = min(schema.get("maximum", 2**53 - 1), 2**53 - 1)
        least = 1 if name == "max_tokens" else schema.get("minimum", schema.get("exclusiveMinimum"))
        bounds = (
            max(float(least), 1.0 - 2**53),
            float(most),
        )  # the page asks for no prompt, so for some tokens
        assert (float(given["min"]), float(given["max"])) == bounds, name
        assert (given["step"] == "1") == (schema["type"] == "integer"), name
        if given.get("placeholder", "").isdigit():
            assert float(given["placeholder"]) == {**sampling, "priority": job["priority"]}[name]["default"]
    assert inputs["max_tokens"]["value"] == str(DEFAULT_MAX_TOKENS)


def node(code: str) -> object:
    """What a program with the page's modules prints, as JSON."""
    command = ["node", "--input-type=module", "-e", code]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


needs_node = pytest.mark.skipif(not shutil.which("node"), reason="no node")

EVENTS = r"""
import {EventReader} from './sse.mjs'
const text = 'retry: 1000\n:\n:\n\nid: 1\nevent: token\ndata: {"a": "ü:\\n"}\n\n'
  + 'data: one\r\ndata: two\r\n\r\ndata\n\nevent: end\nid: 2\ndata:x\n\nid: 3\ndata: not whole'
const whole = JSON.stringify(new EventReader().push(text))
let same = true
for (let cut = 0; cut <= text.length; cut++) {
  const reader = new EventReader()
  same &&= JSON.stringify([...reader.push(text.slice(0, cut)), ...reader.push(text.slice(cut))]) === whole
}
console.log(JSON.stringify([JSON.parse(whole), same]))
"""


@pytest.mark.long
@needs_node
def test_events_are_read_whole_however_they_are_cut() -> None:
    event = {"id": None, "name": "message"}
    assert node(EVENTS) == [
        [
            {"id": "1", "name": "token", "data": '{"a": "ü:\\n"}'},
            {**event, "data": "one\ntwo"},
            {**event, "data": ""},
            {"id": "2", "name": "end", "data": "x"},
        ],
        True,
    ]


FOLD = """
import {fold, unknownJob} from './answer.mjs'
import {stateLine, takeovers} from './words.mjs'
const job = unknownJob(), lines = []
const say = (id, name, data) => {
  fold(job, {id, name, data: JSON.stringify(data)})
  lines.push(stateLine(job, 'open', 0))
}
say(null, 'queued', {position: 3, estimated_wait_s: 1.2})
say('1', 'started', {worker: 'one', n: 2, model: 'tales'})
say('2', 'token', {text: 'a', ids: [1], choice: 1})
say('2', 'token', {text: 'a', ids: [1], choice: 1})
say('3', 'token', {text: 'b', ids: [2, 3], choice: 0})
say('4', 'started', {worker: 'two', n: 2, model: 'tales'})
say('5', 'token', {text: 'c', ids: [4], choice: 1})
say(null, 'queued', {position: 1, estimated_wait_s: null})
say('6-f', 'end', {finish_reason: 'length', n: 4, error: null, timings: {total_s: 65.2, ttft_s: 0.034}})
console.log(JSON.stringify({texts: job.texts, phase: job.phase, last: job.last, lines: [...new Set(lines)],
  takeovers: takeovers(job)}))
"""


REWRITTEN = """
import {follow} from './follow.mjs'
import {unknownJob} from './answer.mjs'
const event = (id, name, data) => `id: ${id}\\nevent: ${name}\\ndata: ${JSON.stringify(data)}\\n\\n`
const lost = event('1-a', 'started', {worker: 'one', n: 1}) + event('2-a', 'token', {text: 'old', ids: [1]})
const error = JSON.stringify({error: {message: 'a part was lost', code: 'stream_rewritten'}})
const told = `event: error\\ndata: ${error}\\n\\n`
const now = event('1-b', 'started', {worker: 'two', n: 1}) + event('2-b', 'token', {text: 'new', ids: [1]})
  + event('3-b', 'end', {finish_reason: 'stop', n: 1})
const answers = HOW, asked = []
globalThis.sessionStorage = {getItem: () => null}
globalThis.fetch = async (path, {headers}) => {
  asked.push(headers['Last-Event-ID'])
  return answers.shift()
}
const job = unknownJob()
await follow('a', job, new AbortController().signal, () => {})
console.log(JSON.stringify({asked, texts: job.texts, starts: job.starts.length}))
"""
#: The gateway says it in the stream, or before the first event.
SAID = {
    "in the stream": "[new Response(lost + told), new Response(now)]",
    "at once": "[new Response(lost), new Response(error, {status: 503}), new Response(now)]",
}


@pytest.mark.long
@needs_node
@pytest.mark.parametrize("how", SAID)
def test_a_job_whose_stream_was_rewritten_is_shown_as_it_is_on_record(how: str) -> None:
    found = node(REWRITTEN.replace("HOW", SAID[how]))
    asked = ["0", "0"] if how == "in the stream" else ["0", "2-a", "0"]
    assert found == {"asked": asked, "texts": ["new"], "starts": 1}


@pytest.mark.long
@needs_node
def test_a_job_s_events_are_folded_once_each() -> None:
    assert node(FOLD) == {
        "texts": ["b", "ac"],
        "phase": "ended",
        "last": "6-f",
        "lines": [
            "Waiting: number 3, about 1.2 s",
            "Running on one · 0 tokens",
            "Running on one · 1 token",
            "Running on one · 3 tokens",
            "Running on two · 3 tokens",
            "Running on two · 4 tokens",
            "Cut off at its length · 4 tokens in 1 m 5 s · first after 34 ms",
        ],
        "takeovers": ["two went on for one after 3 tokens"],
    }


BATCHES = """
import {batchLine} from './words.mjs'
const batch = (status, total, completed, failed, errors = null) =>
  batchLine({status, request_counts: {total, completed, failed}, errors})
const error = (line) => ({data: [{line, message: 'is wrong'}, {line: 9, message: 'too'}]})
console.log(JSON.stringify([
  batch('validating', 0, 0, 0), batch('cancelled', 0, 0, 0), batch('in_progress', 2000, 1200, 0),
  batch('completed', 1, 0, 1), batch('failed', 0, 0, 0, error(3)), batch('failed', 0, 0, 0, error(null))]))
"""


@needs_node
def test_a_batch_is_told_in_a_line() -> None:
    assert node(BATCHES) == [
        "Its input is checked",
        "No row has run",
        "1,200 of 2,000 rows",
        "0 of 1 row, 1 failed",
        "line 3: is wrong",
        "is wrong",
    ]


FOLLOW = r"""
import {unknownJob} from './answer.mjs'
import {follow} from './follow.mjs'
const job = unknownJob(), links = []
const said = new TextEncoder().encode('id: 1\nevent: end\ndata: {}\n\n')
globalThis.sessionStorage = {getItem: () => null}
globalThis.setTimeout = () => 0
globalThis.fetch = async () => new Response(new ReadableStream({start: stream => stream.enqueue(said)}))
await follow('one', job, new AbortController().signal, link => links.push(link))
console.log(JSON.stringify([job.phase, links]))
"""


@pytest.mark.long
@needs_node
def test_who_has_seen_the_end_does_not_wait_for_the_connection_s() -> None:
    assert node(FOLLOW) == ["ended", ["open", "open"]]
