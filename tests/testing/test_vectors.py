"""Jobs with texts, through a whole herd: only the numbers of its vectors are made up."""

import asyncio
import base64
import json
import struct
import urllib.request
from math import hypot
from pathlib import Path
from typing import Any

import openai
import pytest
from redis import Redis

from llama_herd import AsyncClient, EmbeddingJob, GenerationError, InvalidJob, Started, Vectors
from llama_herd.tasks.protocol.text_job import MAX_TEXTS
from llama_herd.testing import Answer, FakeHerd
from llama_herd.testing.scripted_engine import NUM_DIMENSIONS, scripted_vector
from llama_herd.testing.vocabulary import Vocabulary
from tests.chaos.harness.patience import wait_until
from tests.cli.gateway_process import GatewayProcess
from tests.cli.herd_command import invoke

pytestmark = [pytest.mark.redis, pytest.mark.worker]

#: More than a job may have.
MANY = [f"text {number}" for number in range(MAX_TEXTS + 44)]


def vector_of(text: str, num_dimensions: int = NUM_DIMENSIONS) -> list[float]:
    raw = scripted_vector(Vocabulary().encode(text), num_dimensions)
    return list(struct.unpack(f"<{num_dimensions}f", raw))


def test_vectors_come_in_the_order_of_their_texts(herd: FakeHerd) -> None:
    found = herd.client.embed(MANY, model="tales")
    assert [list(one) for one in found.vectors] == [vector_of(text) for text in MANY]
    assert found.prompt_tokens == sum(len(Vocabulary().encode(text)) for text in MANY)


def test_nothing_is_kept_of_vectors_that_have_come(herd: FakeHerd) -> None:
    with Redis.from_url(herd.url) as redis:
        before = set(redis.scan_iter("*:events"))
        herd.client.embed(MANY, model="tales")
        assert set(redis.scan_iter("*:events")) <= before
        wait_until(lambda: not any(redis.scan_iter("celery-task-meta-*")), "Celery's results are gone, too")


def test_fewer_dimensions_are_a_vector_of_length_one(herd: FakeHerd) -> None:
    (found,) = herd.client.embed(["a llama"], model="tales", dimensions=8).vectors
    assert list(found) == vector_of("a llama", 8)
    assert hypot(*found) == pytest.approx(1)


def test_ids_are_texts_too(herd: FakeHerd) -> None:
    texts = ["a llama", "an alpaca"]
    ids = [Vocabulary().encode(text) for text in texts]
    assert herd.client.embed(ids, model="tales") == herd.client.embed(texts, model="tales")


def test_the_other_client_gives_the_same(herd: FakeHerd) -> None:
    async def embed() -> Any:
        async with AsyncClient(herd.url) as client:
            return await client.embed(MANY, model="tales")

    assert asyncio.run(embed()) == herd.client.embed(MANY, model="tales")


def test_a_job_tells_of_its_texts_and_counts_them_once(herd: FakeHerd) -> None:
    job_id = herd.client.submit(EmbeddingJob(texts=("a b", "c"), model="tales"))
    events = list(herd.client.stream(job_id))
    starts = [event for event in events if isinstance(event, Started)]
    assert [(one.texts, one.prompt_tokens) for one in starts] == [(2, 3)]
    assert sorted(number for one in events if isinstance(one, Vectors) for number in one.texts) == [0, 1]
    result = herd.client.result(job_id)
    assert result.usage is not None
    assert (result.usage.completion_tokens, result.usage.total_tokens, result.text) == (0, 3, "")
    assert herd.client.job(job_id).state == "done"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dimensions": NUM_DIMENSIONS + 1}, f"must be at most {NUM_DIMENSIONS}"),
        ({"prompt_name": "query"}, "prompt_name: no such prompt"),
    ],
)
def test_what_the_model_cannot_do_is_refused_in_words(
    herd: FakeHerd, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(GenerationError, match=words):
        herd.client.embed(["x"], model="tales", **fields)


def test_of_a_call_with_a_wrong_text_no_job_goes_on(herd: FakeHerd) -> None:
    with pytest.raises(InvalidJob, match=rf"^texts\.{len(MANY)}: must not be empty$"):
        herd.client.embed([*MANY, ""], model="tales")
    wait_until(lambda: not herd.client.count_jobs(model="tales"), "the other job is cancelled")


def test_a_document_is_ranked_by_the_words_of_the_query(herd: FakeHerd) -> None:
    documents = ["An alpaca hums.", "A llama spits.", "Who spits? The llama."]
    ranks = herd.client.rerank("Who spits?", documents, model="tales")
    assert [(one.index, one.logit) for one in ranks] == [(2, 2.0), (1, 0.0), (0, -2.0)]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("a llama", "texts: must be a list of texts. Fix: [text] for one"),
        (b"a llama", "texts: must be a list of texts"),
        (None, "texts: must be a list of texts"),
        ([], "texts: must not be empty"),
        ([None], "texts.0: input should be a valid string"),
        (["a", 7], "texts.1: input should be a valid string, got 7"),
        ([*MANY, [1]], f"texts.{len(MANY)}: input should be a valid string"),
        ([*MANY, "\ud800"], f"texts.{len(MANY)}: must be well-formed text"),
        ([[1], []], "text_ids.1: must not be empty"),
        ([[1]] * len(MANY) + [[-1]], f"text_ids.{len(MANY)}.0: input should be greater than"),
    ],
)
def test_what_are_no_texts_is_named_by_its_number_in_the_call(herd: FakeHerd, texts: Any, words: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        herd.client.embed(texts, model="tales")
    assert str(caught.value).startswith(words)


def test_a_text_that_is_too_long_is_named_by_its_number_in_the_call(herd: FakeHerd, tmp_path: Path) -> None:
    long = "a b " * 20_000
    with pytest.raises(GenerationError, match=rf"texts\.{len(MANY)}: 40\d+ tokens"):
        herd.client.embed([*MANY, long], model="tales")
    with pytest.raises(GenerationError, match=rf"documents\.{len(MANY)}, with the query: 40\d+ tokens"):
        herd.client.rerank("Who?", [*MANY, long], model="tales")
    with GatewayProcess(herd.url, tmp_path / "log") as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        for last, words in ((long, r"40\d+ tokens"), ("\0", "must not contain a NUL")):
            with pytest.raises(openai.BadRequestError, match=rf"input\.{len(MANY)}: {words}"):
                client.embeddings.create(model="tales", input=[*MANY, last])


def test_texts_may_come_from_any_iterable(herd: FakeHerd) -> None:
    found: Any = herd.client.embed((text for text in MANY), model="tales")  # type: ignore[arg-type]
    assert found == herd.client.embed(MANY, model="tales")
    ranks = herd.client.rerank("Who?", (text for text in MANY), model="tales")  # type: ignore[arg-type]
    assert len(ranks) == len(MANY)


@pytest.mark.parametrize(
    ("query", "documents", "top_n", "words"),
    [
        ("q", "abc", None, "documents: must be a list of texts"),
        ("q", [{"text": "a"}], None, "documents.0: input should be a valid string"),
        ("q", [*MANY, ""], None, f"documents.{len(MANY)}: must not be empty"),
        ("", ["a"], None, "query: must not be empty"),
        (None, ["a"], None, "query: input should be a valid string"),
        ("\ud800", ["a"], None, "query: must be well-formed text"),
        *(("q", ["a"], top_n, "top_n: must be a number of documents") for top_n in (0, -1, True, 1.0, "1")),
    ],
)
def test_what_cannot_be_ranked_is_named(
    herd: FakeHerd, query: Any, documents: Any, top_n: Any, words: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        herd.client.rerank(query, documents, top_n=top_n, model="tales")
    assert str(caught.value).startswith(words)


def test_texts_and_prompts_share_a_worker(herd: FakeHerd) -> None:
    herd.answer(Answer.of("one two six ten", tokens_per_s=20))
    told = herd.client.submit(prompt="x", model="tales")
    assert len(herd.client.embed(MANY, model="tales").vectors) == len(MANY)
    assert herd.client.result(told).text == "one two six ten"


def test_the_official_client_reads_both_encodings(herd: FakeHerd, tmp_path: Path) -> None:
    with GatewayProcess(herd.url, tmp_path / "log") as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none")
        many = client.embeddings.create(model="tales", input=MANY)
        assert [one.embedding for one in many.data] == [vector_of(text) for text in MANY]
        assert [one.index for one in many.data] == list(range(len(MANY)))
        assert (many.model, many.object) == ("tales", "list")
        assert many.usage.prompt_tokens == many.usage.total_tokens > len(MANY)
        plain = client.embeddings.create(
            model="tales", input="a llama", encoding_format="float", dimensions=8
        )
        assert plain.data[0].embedding == vector_of("a llama", 8)
        with pytest.raises(openai.BadRequestError, match="dimensions: must be at most"):
            client.embeddings.create(model="tales", input="a llama", dimensions=1000)
        with pytest.raises(openai.BadRequestError, match=r"input: input 1 must not be empty"):
            client.embeddings.create(model="tales", input=["a", ""])
        for name in ("none", "BAAI/none"):
            with pytest.raises(openai.NotFoundError):
                client.embeddings.create(model=name, input="a")
        body = json.dumps({"model": "tales", "input": [[104, 105]], "encoding_format": "base64"}).encode()
        asked = urllib.request.Request(
            f"{gateway.url}/v1/embeddings", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            told = json.load(answer)["data"][0]["embedding"]
        assert base64.b64decode(told) == scripted_vector([104, 105], NUM_DIMENSIONS)


def batch_line(name: str, texts: list[str], **body: Any) -> str:
    asked = {"model": "tales", "input": texts, **body}
    line = {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": asked}
    return json.dumps(line) + "\n"


def test_rows_of_a_batch_are_answered_with_vectors(herd: FakeHerd, tmp_path: Path) -> None:
    few = ["a llama", "an alpaca"]
    lines = batch_line("a", few), batch_line("b", few[:1], encoding_format="base64"), batch_line("c", MANY)
    with GatewayProcess(herd.url, tmp_path / "log") as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none")
        file = client.files.create(file=("rows.jsonl", "".join(lines[:2]).encode()), purpose="batch")
        made = client.batches.create(
            input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
        )
        wait_until(lambda: client.batches.retrieve(made.id).status == "completed", "the batch ends")
        ended = client.batches.retrieve(made.id)
        assert ended.usage is not None
        assert ended.usage.input_tokens == 3 * len(Vocabulary().encode(few[0]))
        output = ended.output_file_id
        assert output is not None
        told = {
            one["custom_id"]: one for one in map(json.loads, client.files.content(output).text.splitlines())
        }
        rows = {name: one["response"]["body"]["data"] for name, one in told.items()}
        assert [one["embedding"] for one in rows["a"]] == [vector_of(text) for text in few]
        raw = base64.b64decode(rows["b"][0]["embedding"])
        assert list(struct.unpack(f"<{NUM_DIMENSIONS}f", raw)) == vector_of(few[0])
        assert told["a"]["response"]["body"]["usage"]["prompt_tokens"] > 0
    source, answers = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    source.write_text("".join(lines))
    done = invoke("batch", str(source), "-o", str(answers), HERD_REDIS_URL=herd.url)
    assert done.exit_code == 1  # a row has too many texts
    assert {json.loads(line)["custom_id"] for line in answers.read_text().splitlines()} == {"a", "b"}
    errors = Path(f"{answers}.errors.jsonl").read_text()
    assert f"input: is too much for one row, which may have {MAX_TEXTS} texts" in errors
