"""OpenAI's own clients for Python and Node, and curl, against a gateway and a worker that are processes.

Nothing here imports openai before it is needed: that takes half a second.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, Field

from llama_herd.errors import UnservedModel
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks import Client
from llama_herd.tasks.openai.answer_schema import ChatAnswerMessage
from tests.cli.gateway_process import GatewayProcess
from tests.cli.herd_command import start_herd
from tests.local.processes import WorkerProcess, held
from tests.node import FOLDER, bring_packages, needs_node
from tests.openai_types import values_of

if TYPE_CHECKING:
    from openai import OpenAI

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

TALE: dict[str, Any] = {"model": "tales", "prompt": "Once upon a time", "max_tokens": 16, "seed": 7}
CHAT: dict[str, Any] = {
    "model": "tales",
    "messages": [{"role": "user", "content": "Tell a tale."}],
    "seed": 7,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the worker is held up."""
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def url(server: EmbeddedRedis, folder: Path) -> Iterator[str]:
    worker = WorkerProcess(server.url, BUNDLED_MODEL, "gateway", folder / "worker.log", held_by=folder)
    with worker, GatewayProcess(server.url, folder / "gateway.log") as gateway:
        yield gateway.url


def test_models(openai: "OpenAI") -> None:
    assert [model.id for model in openai.models.list()] == ["tales"]
    model = openai.models.retrieve("tales")
    assert (model.owned_by, model.created > 1_700_000_000) == ("llama-herd", True)
    assert model.to_dict()["max_model_len"] == 512


def test_an_open_gateway_takes_any_key(url: str) -> None:
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tales"]
        assert client.completions.create(**TALE).choices[0].text


def test_a_completion_is_the_job_s_text(openai: "OpenAI", server: EmbeddedRedis) -> None:
    found = openai.completions.with_raw_response.create(**TALE)
    with Client(server.url) as client:
        result = client.result(found.headers["x-job-id"])
    answer = found.parse()
    assert answer.choices[0].text == result.text
    assert (answer.choices[0].finish_reason, answer.usage and answer.usage.completion_tokens) == (
        "length",
        16,
    )
    assert openai.completions.create(**TALE).choices[0].text == result.text  # by the seed


def test_a_stream_is_the_same_text(openai: "OpenAI") -> None:
    whole = openai.completions.create(**TALE)
    chunks = list(openai.completions.create(**TALE, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat_and_its_stream(openai: "OpenAI") -> None:
    whole = openai.chat.completions.create(**CHAT, max_completion_tokens=12)
    message = whole.choices[0].message
    assert (message.role, whole.usage and whole.usage.completion_tokens) == ("assistant", 12)
    deltas = [
        chunk.choices[0].delta
        for chunk in openai.chat.completions.create(**CHAT, max_completion_tokens=12, stream=True)
    ]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == message.content


class Animal(BaseModel):
    kind: Literal["fox", "owl"]
    legs: int = Field(ge=0, le=8)


def test_a_class_is_parsed_by_openais_own_client(openai: "OpenAI") -> None:
    chat = openai.chat.completions.parse(**CHAT, response_format=Animal)
    assert isinstance(chat.choices[0].message.parsed, Animal)
    assert chat.choices[0].finish_reason == "stop"
    with openai.chat.completions.stream(**CHAT, response_format=Animal) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == chat.choices[0].message.parsed


def test_a_class_is_parsed_by_langchain(url: str, key: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(base_url=f"{url}/v1", api_key=key, model="tales", max_retries=0)
    structured = model.with_structured_output(Animal)
    answers = [
        structured.invoke("Which?"),
        *structured.batch(["Who?", "What?"]),
        *structured.stream("Where?"),
    ]
    assert {type(answer) for answer in answers} == {Animal}


def test_langchain_sends_its_prompts_in_one_list(url: str, key: str, openai: "OpenAI") -> None:
    langchain = pytest.importorskip("langchain_openai")
    asked = {"model": "tales", "temperature": 0, "max_tokens": 8, "max_retries": 0}
    model = langchain.OpenAI(base_url=f"{url}/v1", api_key=key, **asked)
    prompts = ["Once upon a time", "The llama", "Once upon a time"]
    alone = [model.invoke(prompt) for prompt in prompts]
    found = model.generate(prompts)
    assert [one[0].text for one in found.generations] == alone
    assert model.batch(prompts) == alone
    assert "".join(model.stream(prompts[0])) == alone[0]


def test_a_list_of_prompts_and_their_echoes(openai: "OpenAI") -> None:
    prompts = ["Once upon a time", "The llama"]
    asked: dict[str, Any] = {**TALE, "prompt": prompts, "temperature": 0, "max_tokens": 4}
    plain = openai.completions.create(**asked)
    echoed = openai.completions.create(**asked, echo=True, logprobs=1)
    for prompt, choice, other in zip(prompts, plain.choices, echoed.choices, strict=True):
        assert other.text == prompt + choice.text
        assert other.logprobs is not None
        assert "".join(other.logprobs.tokens or ()) == other.text
    assert plain.usage == echoed.usage
    texts = dict.fromkeys(range(2), "")
    for chunk in openai.completions.create(**asked, echo=True, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert list(texts.values()) == [choice.text for choice in echoed.choices]


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_prompt_that_comes_again_is_cached(openai: "OpenAI", server: EmbeddedRedis, is_chat: bool) -> None:
    prompt = f"{'A fox' if is_chat else 'An owl'} went down to the river. " * 12
    turns = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
    asked: dict[str, Any] = {"model": "tales", "max_tokens": 4, **turns}
    create: Any = openai.chat.completions.create if is_chat else openai.completions.create
    cold, warm, several = create(**asked), create(**asked), create(**asked, n=3)
    stream = create(**asked, stream=True, stream_options={"include_usage": True})
    streamed = list(stream)[-1]
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    pages = (warm.usage.prompt_tokens - 1) // 64
    assert pages > 0
    for found in (warm, several, streamed):
        assert found.usage.prompt_tokens == cold.usage.prompt_tokens
        assert found.usage.prompt_tokens_details.cached_tokens == 64 * pages
    with Client(server.url) as client:
        results = [client.result(one.id.partition("-")[2]) for one in (cold, warm, several)]
    assert [one.cached_tokens for one in results] == [0, 64 * pages, 64 * pages]
    if not is_chat:
        both = create(**asked | {"prompt": [prompt, "The llama"]})
        assert both.usage.prompt_tokens_details.cached_tokens == 64 * pages
        scored = create(**asked, echo=True, logprobs=1)
        assert scored.usage.prompt_tokens_details.cached_tokens == 0


def test_vllms_forms_are_taken_beside_openais_fields(openai: "OpenAI") -> None:
    found = openai.completions.create(**TALE, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert found.choices[0].text in ("yes", "no")


def test_several_outputs_of_which_each_ends(openai: "OpenAI") -> None:
    asked = {**TALE, "n": 3, "temperature": 0.9}
    whole = openai.completions.create(**asked)
    texts = dict.fromkeys(range(3), "")
    for chunk in openai.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert len(set(texts.values())) > 1


def test_a_stop_string_ends_the_text_before_it(openai: "OpenAI") -> None:
    text = openai.completions.create(**TALE).choices[0].text
    found = openai.completions.create(**TALE, stop=[text[20:26], "nowhere"]).choices[0]
    assert (found.finish_reason, found.text) == ("stop", text[: text.index(text[20:26])])


def test_log_probabilities_are_those_of_the_text(openai: "OpenAI") -> None:
    found = openai.completions.create(**TALE, logprobs=2).choices[0]
    assert found.logprobs is not None
    assert "".join(found.logprobs.tokens or ()) == found.text
    assert found.logprobs.text_offset == [
        sum(map(len, (found.logprobs.tokens or ())[:place])) for place in range(16)
    ]
    choice = openai.chat.completions.create(**CHAT, max_tokens=8, logprobs=True, top_logprobs=2).choices[0]
    content = (choice.logprobs and choice.logprobs.content) or []
    whole = b"".join(bytes(one.bytes or ()) for one in content).decode()
    assert whole.removeprefix(" ") == choice.message.content
    assert all(len(one.top_logprobs) == 2 for one in content)
    streamed = [
        one
        for chunk in openai.chat.completions.create(**CHAT, max_tokens=8, logprobs=True, stream=True)
        for one in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or ()
    ]
    assert [one.logprob for one in streamed] == [one.logprob for one in content]


def test_every_answer_is_taken_as_the_next_turn(openai: "OpenAI") -> None:
    """By a model whose template knows neither tools nor reasoning: a chat may have begun elsewhere."""
    from openai.types.chat import ChatCompletionMessage

    answers = [*values_of(ChatAnswerMessage), *values_of(ChatCompletionMessage)]
    for answer in (one for one in answers if one["content"] is not None or one["tool_calls"]):
        for after in ({"role": "user", "content": "and?"}, {"role": "tool", "content": "22"}):
            if after["role"] == "user" or answer["tool_calls"]:
                turns: Any = [*CHAT["messages"], answer, after]
                found = openai.chat.completions.create(model="tales", messages=turns, max_tokens=1)
                assert found.usage is not None


def test_penalties_and_biases_reach_the_sampler(openai: "OpenAI") -> None:
    plain = openai.completions.create(**TALE, temperature=0).choices[0].text
    penalised = openai.completions.create(**TALE, temperature=0, frequency_penalty=2, presence_penalty=2)
    assert penalised.choices[0].text != plain
    biased = openai.completions.create(**{**TALE, "max_tokens": 3}, logit_bias={"5": 100}, logprobs=0)
    assert len(set((biased.choices[0].logprobs and biased.choices[0].logprobs.tokens) or ())) == 1


def test_its_errors_are_the_client_s_own(openai: "OpenAI", server: EmbeddedRedis) -> None:
    from openai import BadRequestError, NotFoundError

    with pytest.raises(BadRequestError) as wrong:
        openai.completions.create(**{**TALE, "max_tokens": 0})
    assert (wrong.value.param, wrong.value.code) == ("max_tokens", "invalid_job")
    with pytest.raises(BadRequestError) as long:
        openai.completions.create(**{**TALE, "prompt": "a tale " * 2000})
    assert long.value.code == "context_length_exceeded"
    tools: Any = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(BadRequestError, match="tool_choice") as no_calls:
        openai.chat.completions.create(**CHAT, tools=tools, tool_choice="required")
    assert no_calls.value.code == "invalid_job"
    with pytest.raises(NotFoundError) as model:
        openai.completions.create(**{**TALE, "model": "gpt-9"})
    assert model.value.code == "model_not_found"


def test_a_stream_that_is_cancelled_elsewhere_raises(
    openai: "OpenAI", server: EmbeddedRedis, folder: Path
) -> None:
    from openai import APIError

    asked = {**TALE, "max_tokens": 400, "extra_body": {"min_tokens": 400}}
    with Client(server.url) as client, held(folder, num_tokens=5):
        found = openai.completions.with_raw_response.create(**asked, stream=True)
        stream = iter(found.parse())
        next(stream)
        client.cancel(found.headers["x-job-id"])
    with pytest.raises(APIError, match="cancelled"):
        list(stream)


def test_a_full_queue_and_a_wrong_key(server: EmbeddedRedis, tmp_path: Path, key: str) -> None:
    from openai import AuthenticationError, OpenAI, RateLimitError

    with (
        GatewayProcess(
            server.url, tmp_path / "log", HERD_MAX_QUEUE="1", HERD_MODELS="none", HERD_GATEWAY_OPEN="false"
        ) as other,
        OpenAI(base_url=f"{other.url}/v1", api_key=key, max_retries=0) as openai,
        OpenAI(base_url=f"{other.url}/v1", api_key="herd-wrong", max_retries=0) as stranger,
        Client(server.url) as client,
    ):
        with pytest.warns(UnservedModel):
            client.submit(prompt="waits", model="none", job_id="waits")
        with pytest.raises(RateLimitError) as full:
            openai.completions.create(**{**TALE, "model": "none"})
        assert full.value.response.headers["retry-after"].isdigit()
        client.cancel("waits")
        with pytest.raises(AuthenticationError):
            stranger.models.list()


async def _async_texts(url: str, key: str) -> list[str]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        stream = await client.completions.create(**TALE, stream=True)
        return [chunk.choices[0].text async for chunk in stream]


def test_the_asynchronous_client(openai: "OpenAI", url: str, key: str) -> None:
    assert "".join(asyncio.run(_async_texts(url, key))) == openai.completions.create(**TALE).choices[0].text


#: The same in Node; each line of its output is a part of the answer.
NODE = """
import OpenAI from 'openai'

const [url, apiKey] = process.argv.slice(1)
const client = new OpenAI({baseURL: `${url}/v1`, apiKey, maxRetries: 0})
const tale = {model: 'tales', prompt: 'Once upon a time', max_tokens: 16, seed: 7}
const messages = [{role: 'user', content: 'Tell a tale.'}]
const chat = {model: 'tales', messages, seed: 7, max_completion_tokens: 12}
const found = {models: [], streamed: '', chatted: ''}
for await (const model of client.models.list()) found.models.push(model.id)

const {data, response} = await client.completions.create(tale).withResponse()
found.text = data.choices[0].text
found.job = response.headers.get('x-job-id')
const options = {stream: true, stream_options: {include_usage: true}}
for await (const chunk of await client.completions.create({...tale, ...options})) {
  found.streamed += chunk.choices[0]?.text ?? ''
  found.usage = chunk.usage
}
const answer = await client.chat.completions.create({...chat, logprobs: true, top_logprobs: 2})
found.answer = answer.choices[0].message.content
found.scores = answer.choices[0].logprobs.content.map(one => one.top_logprobs.length)
for await (const chunk of await client.chat.completions.create({...chat, stream: true}))
  found.chatted += chunk.choices[0].delta.content ?? ''
found.errors = []
const wrong = [{...tale, max_tokens: 0}, {...tale, model: 'gpt-9'}]
for (const body of wrong) {
  const error = await client.completions.create(body).catch(error => error)
  found.errors.push([error.constructor.name, error.status, error.param])
}
const stream = await client.completions.create({...tale, max_tokens: 900, stream: true})
for await (const _ of stream) break
console.log(JSON.stringify(found))
"""


@pytest.mark.program
@needs_node
def test_openai_s_client_for_node(openai: "OpenAI", url: str, key: str) -> None:
    bring_packages()
    command = ["node", "--input-type=module", "-e", NODE, "--", url, key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=FOLDER)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["text"] == found["streamed"] == openai.completions.create(**TALE).choices[0].text
    assert found["job"]
    assert (found["models"], found["usage"]["completion_tokens"]) == (["tales"], 16)
    assert found["answer"] == found["chatted"]
    assert found["scores"] == [2] * 12
    assert found["errors"] == [["BadRequestError", 400, "max_tokens"], ["NotFoundError", 404, "model"]]


@pytest.mark.program
@needs_node
def test_the_example_for_node(openai: "OpenAI", url: str, key: str) -> None:
    bring_packages()
    env = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key}
    command = ["node", str(FOLDER / "openai_client.mjs"), TALE["prompt"]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env)
    asked = {**TALE, "max_tokens": 80}
    assert done.stdout == openai.completions.create(**asked).choices[0].text + "\n"


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
def test_curl_submits_and_follows_a_job(url: str) -> None:
    def curl(*words: str) -> str:
        command = ["curl", "-sS", "--max-time", "60", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    accepted = json.loads(curl(f"{url}/v1/jobs", "-d", '{"prompt": "Once", "sampling": {"max_tokens": 4}}'))
    stream = curl("-N", f"{url}{accepted['events']}")
    assert "event: end" in stream
    assert json.loads(curl(f"{url}/v1/jobs/{accepted['id']}"))["state"] == "done"


def test_a_gateway_ends_in_order(server: EmbeddedRedis, tmp_path: Path) -> None:
    """A new Python, to its very end."""
    with start_herd(tmp_path, "gateway", HERD_REDIS_URL=server.url, HERD_GATEWAY_PORT="0") as gateway:
        assert gateway.stderr is not None
        assert any("gateway at http://" in line for line in gateway.stderr)
        gateway.send_signal(signal.SIGTERM)
        output, errors = gateway.communicate(timeout=20)
    assert gateway.returncode == 0
    assert "Traceback" not in output + errors
