"""`herd batch --embed`: texts in, vectors out, each once and where its row stands."""

import csv
import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from numpy.typing import NDArray
from pyarrow.parquet import read_table, write_table
from redis import Redis

from benchmarks.stand_in import StandIn, vector_of
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.text_job import TextJob
from tests.batch_api import BatchApi
from tests.chaos.harness.patience import wait_until
from tests.cli.batch.batch_command import read
from tests.cli.gateway_process import GatewayProcess
from tests.cli.herd_command import COMMAND, environment, fork_herd, invoke
from tests.local.forked_python import start_piped

pytestmark = [pytest.mark.redis, pytest.mark.long]

WIDTH, NUM = 8, 200
TOO_LONG = Failure(code="prompt_too_long", message="texts.0: 9 tokens, but a text may have at most 8")


def refusal(job_id: str, job: TextJob) -> Failure | None:
    """A worker refuses a job whole if one of its texts is too long."""
    return (
        TOO_LONG if isinstance(job, EmbeddingJob) and any("long" in one for one in job.texts or ()) else None
    )


@pytest.fixture
def worker(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.chdir(tmp_path)
    with StandIn(redis_url, width=WIDTH, verdict=refusal) as worker:
        yield worker


def run(redis_url: str, *arguments: str, exit_code: int = 0) -> str:
    done = invoke("batch", *arguments, "--embed", HERD_REDIS_URL=redis_url)
    assert done.exit_code == exit_code, done.output
    return done.stdout


def texts(num: int = NUM) -> list[str]:
    return [f"text {number}" for number in range(num)]


def write_lines(rows: list[Any], path: str = "in.jsonl") -> None:
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def expected(some: list[str]) -> NDArray[np.float32]:
    return np.array([np.frombuffer(b64decode(vector_of(text, WIDTH)), "<f4") for text in some])


def test_a_million_floats_stand_where_their_rows_do(redis_url: str, worker: StandIn) -> None:
    write_lines([{"text": text} for text in texts()])
    told = run(redis_url, "in.jsonl", "-o", "out.npy")
    assert f"out.npy: {NUM} vectors of {WIDTH} numbers" in told
    found = np.load("out.npy", mmap_mode="r")
    assert (found.dtype, found.shape, found.flags.c_contiguous) == (np.float32, (NUM, WIDTH), True)
    assert np.array_equal(found, expected(texts()))
    with Client(redis_url) as client:
        assert np.array_equal(found[:3], np.array(client.embed(texts(3), model="tales").vectors))


def test_rows_share_jobs_and_redis_keeps_none_of_their_vectors(
    redis_url: str, worker: StandIn, redis: Redis
) -> None:
    write_lines([{"text": text} for text in texts()])
    run(redis_url, "in.jsonl", "-o", "out.npy", "--texts-per-job", "50")
    assert len(worker.answered) == NUM // 50
    assert not [key for key in redis.keys("*{batch-*") if redis.type(key) == b"stream"]


def test_a_row_that_is_refused_fails_alone_and_is_nan(redis_url: str, worker: StandIn) -> None:
    some = [*texts(90), "long", "", *texts(30)]
    write_lines([{"text": text} for text in some])
    told = run(redis_url, "in.jsonl", "-o", "out.npy", exit_code=1)
    assert "122 vectors of 8 numbers, 2 of them NaN" in told
    found = np.load("out.npy")
    assert np.isnan(found[90:92]).all()
    assert np.array_equal(np.delete(found, [90, 91], 0), expected([*texts(90), *texts(30)]))
    failures = {one["line"]: one["error"] for one in read(Path("out.npy.errors.jsonl"))}
    assert {line: one["code"] for line, one in failures.items()} == {
        91: "prompt_too_long",
        92: "invalid_line",
    }
    assert failures[92]["message"] == "text: must be a text that is not empty"
    assert "long" not in worker.texts
    assert len(worker.texts) == 120


def test_lines_are_as_openai_has_them_and_in_order_if_asked(redis_url: str, worker: StandIn) -> None:
    some = [*texts(70), "long", *texts(70)]
    write_lines([{"text": text, "custom_id": f"c{number}"} for number, text in enumerate(some)])
    run(redis_url, "in.jsonl", "-o", "out.jsonl", "--in-order", "--with-prompts", exit_code=1)
    answers = read(Path("out.jsonl"))
    assert [one["custom_id"] for one in answers] == [f"c{at}" for at in range(141) if at != 70]
    assert [one["prompt"] for one in answers] == [text for text in some if text != "long"]
    first = answers[0]["response"]["body"]
    assert (first["object"], first["model"], first["usage"]) == ("list", "tales", None)
    (vector,) = first["data"]
    assert np.array_equal(np.array(vector["embedding"], np.float32), expected(["text 0"])[0])


def test_tables_take_over_columns_and_a_failed_row_has_no_vector(redis_url: str, worker: StandIn) -> None:
    columns = {"title": ["a", "b", "c"], "body": ["one", "long", "two"], "stars": [1, 2, 3]}
    write_table(pyarrow.table(columns), "in.parquet")
    run(redis_url, "in.parquet", "-o", "out.parquet", "--prompt", "{title}: {body}", exit_code=1)
    table = read_table("out.parquet")
    assert table.schema.field("vector").type == pyarrow.list_(pyarrow.float32())
    assert table.column("stars").to_pylist() == [1, 2, 3]
    vectors = table.column("vector").to_pylist()
    assert vectors[1] is None
    assert np.array_equal(np.array([vectors[0], vectors[2]], np.float32), expected(["a: one", "c: two"]))
    assert table.column("error").to_pylist() == [None, f"prompt_too_long: {TOO_LONG.message}", None]


def test_a_table_says_how_wide_its_vectors_are_where_each_row_has_one(
    redis_url: str, worker: StandIn
) -> None:
    """pyarrow before 26 reads no null among lists of a fixed size."""
    for text, (width, vectors) in {"one": (WIDTH, expected(["one"]).tolist()), "long": (-1, [None])}.items():
        Path("in.txt").write_text(f"{text}\n")
        run(redis_url, "in.txt", "-o", f"{text}.parquet", exit_code=width < 0)
        column = read_table(f"{text}.parquet").column("vector")
        assert column.type == pyarrow.list_(pyarrow.float32(), width)
        assert column.to_pylist() == vectors


def test_vectors_that_another_run_has_left_say_nothing_of_the_width(redis_url: str, worker: StandIn) -> None:
    Path("in.txt").write_text("one\ntwo\n")
    run(redis_url, "in.txt", "-o", "out.csv", "--model", "tales")
    for name in ("", ".answers.jsonl", ".errors.jsonl", ".run"):
        Path(f"out.csv{name}").unlink()
    with StandIn(redis_url, "songs", width=WIDTH // 2):
        run(redis_url, "in.txt", "-o", "out.csv", "--model", "songs")
    with Path("out.csv").open(newline="") as file:
        assert [len(json.loads(row["vector"])) for row in csv.DictReader(file)] == [WIDTH // 2] * 2


def test_a_table_of_text_has_a_vector_as_json(redis_url: str, worker: StandIn) -> None:
    Path("in.csv").write_text("text,label\none,x\ntwo,y\n")
    run(redis_url, "in.csv", "-o", "out.csv")
    with Path("out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == ["x", "y"]
    vectors = [json.loads(row["vector"]) for row in rows]
    assert np.array_equal(np.array(vectors, np.float32), expected(["one", "two"]))
    run(redis_url, "in.csv", "-o", "out.jsonl", "--format", "flat")
    flat = read(Path("out.jsonl"))
    assert [one["vector"] for one in flat] == vectors


def test_lines_of_a_text_file_and_of_standard_input_are_texts(
    redis_url: str, worker: StandIn, tmp_path: Path
) -> None:
    Path("in.txt").write_text("one\n\ntwo\n")
    run(redis_url, "in.txt", "-o", "out.npy")
    assert np.array_equal(np.load("out.npy"), expected(["one", "two"]))
    command = [COMMAND[-1], "batch", "-", "-o", "piped.npy", "--embed"]
    with start_piped(command, environment(HERD_REDIS_URL=redis_url), tmp_path) as process:
        process.stdin.write('{"text": "one"}\n{"text": "two"}\n')
        process.stdin.close()
        assert process.wait(30) == 0
    assert np.array_equal(np.load("piped.npy"), expected(["one", "two"]))


def test_a_job_asks_what_the_options_say(redis_url: str, worker: StandIn) -> None:
    jobs: list[EmbeddingJob] = []
    worker._verdict = lambda job_id, job: jobs.append(job)
    write_lines([{"text": text} for text in texts(2)])
    run(
        redis_url,
        *("in.jsonl", "-o", "out.npy", "--dimensions", "4", "--prompt-name", "query"),
        *("--truncate", "end", "--priority", "3"),
    )
    (job,) = jobs
    assert (job.dimensions, job.prompt_name, job.truncate, job.priority) == (4, "query", "end", 3)


@pytest.mark.parametrize("output", ["out.npy", "out.parquet", "out.jsonl"])
def test_a_killed_command_goes_on_and_no_text_is_embedded_twice(
    redis_url: str, worker: StandIn, tmp_path: Path, output: str, redis: Redis
) -> None:
    write_lines([{"text": text} for text in texts(1000)])
    answers = tmp_path / (output if output.endswith(".jsonl") else f"{output}.answers.jsonl")
    arguments = ("batch", "in.jsonl", "-o", output, "--embed", "--texts-per-job", "10", "--window", "4")
    for wanted in (10_000, 30_000, 50_000):
        with fork_herd(tmp_path, *arguments, HERD_REDIS_URL=redis_url) as process:
            wait_until(
                lambda: answers.exists() and answers.stat().st_size > wanted,  # noqa: B023
                "some rows are done",
            )
            process.kill()
            process.communicate()
    run(redis_url, "in.jsonl", "-o", output, "--texts-per-job", "10", "--window", "4")
    assert sorted(worker.texts) == sorted(texts(1000))
    assert len({one["id"] for one in read(answers)}) == len(read(answers)) == 1000
    assert not [key for key in redis.keys("*{batch-*") if redis.type(key) == b"stream"]
    if output == "out.npy":
        assert np.array_equal(np.load(output), expected(texts(1000)))
    elif output == "out.parquet":
        assert np.array_equal(
            np.array(read_table(output).column("vector").to_pylist(), np.float32), expected(texts(1000))
        )


def test_a_file_that_is_not_whole_is_none_and_is_finished_later(redis_url: str, worker: StandIn) -> None:
    write_lines([{"text": text} for text in [*texts(20), *["long"] * 20, *texts(20)]])
    arguments = ("in.jsonl", "-o", "out.npy", "--texts-per-job", "10", "--window", "1")
    told = run(redis_url, *arguments, "--max-errors", "3", exit_code=1)
    assert "out.npy can be read once all rows have ended" in told
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load("out.npy")
    run(redis_url, *arguments, exit_code=1)
    found = np.load("out.npy")
    assert np.isnan(found[20:40]).all()
    assert np.array_equal(found[40:], expected(texts(20)))


def test_another_width_is_another_model(redis_url: str, worker: StandIn) -> None:
    write_lines([{"text": text} for text in texts(20)])
    worker._verdict = lambda job_id, job: setattr(worker, "_width", worker._width + 1)
    done = invoke(
        *("batch", "in.jsonl", "-o", "out.npy", "--embed", "--texts-per-job", "10"), HERD_REDIS_URL=redis_url
    )
    assert done.exit_code == 2
    assert "another model serves as tales now" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--embed", "--max-tokens", "3"),
            "--max-tokens, --temperature or --set: a row that becomes a vector",
        ),
        (("--embed", "--chat"), "--chat or --system"),
        (("--embed", "--dimensions", "0"), "dimensions: input should be greater"),
        (("--dimensions", "8"), "--dimensions is for texts that become vectors. Fix: --embed"),
        (("--format", "npy"), "an .npy file is for vectors. Fix: --embed"),
    ],
)
def test_what_cannot_be_is_told_before_a_file_is_made(
    redis_url: str, worker: StandIn, arguments: tuple[str, ...], words: str
) -> None:
    write_lines([{"text": "a"}])
    done = invoke("batch", "in.jsonl", "-o", "out.jsonl", *arguments, HERD_REDIS_URL=redis_url)
    assert done.exit_code == 2
    assert words in done.output
    assert not Path("out.jsonl").exists()


def test_a_row_has_nothing_but_its_text_and_name(redis_url: str, worker: StandIn) -> None:
    request = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": ["a"]}}
    write_lines([{"text": "a", "modle": "x"}, {"prompt": "a"}, request])
    run(redis_url, "in.jsonl", "-o", "out.jsonl", exit_code=1)
    messages = [one["error"]["message"] for one in read(Path("out.jsonl.errors.jsonl"))]
    assert "modle: unknown field" in messages[0]
    assert messages[1] == "prompt: unknown field; text: must be a text that is not empty"
    assert messages[2] == "line: is a request in OpenAI's form. Fix: leave out --embed"


def test_rows_of_requests_are_ranks_too_by_command_and_over_http(
    redis_url: str, worker: StandIn, tmp_path: Path
) -> None:
    documents = ["a", "b", "c"]
    body = {"model": "tales", "query": "who?", "documents": documents, "top_n": 2, "return_documents": True}
    line = {"custom_id": "q", "method": "POST", "url": "/v1/rerank", "body": body}
    too_many = {**line, "custom_id": "r", "body": {**body, "documents": ["x"] * 257}}
    write_lines([line, too_many])
    done = invoke("batch", "in.jsonl", "-o", "out.jsonl", HERD_REDIS_URL=redis_url)
    assert done.exit_code == 1, done.output
    (answer,) = read(Path("out.jsonl"))
    told = answer["response"]["body"]
    with Client(redis_url) as client:
        ranks = client.rerank("who?", documents, top_n=2, model="tales")
    assert [(one["index"], one["relevance_score"]) for one in told["results"]] == [
        (one.index, one.score) for one in ranks
    ]
    assert [one["document"]["text"] for one in told["results"]] == [documents[one.index] for one in ranks]
    (failure,) = read(Path("out.jsonl.errors.jsonl"))
    assert "documents: is too much for one row" in failure["error"]["message"]
    with GatewayProcess(redis_url, tmp_path / "log") as gateway:
        api = BatchApi(lambda: gateway.url)
        batch_id = api.begin([line], endpoint="/v1/rerank")
        ended = api.end_of(batch_id)
        assert ended["usage"]["input_tokens"] == len(documents)
        (over_http,) = api.content(ended["output_file_id"])
    assert over_http["response"]["body"] == told


def test_a_table_of_texts_says_where_an_answer_is_that_is_none(redis_url: str, worker: StandIn) -> None:
    body = {"model": "tales", "input": ["a", "b"]}
    write_lines([{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": body}])
    done = invoke("batch", "in.jsonl", "-o", "out.csv", HERD_REDIS_URL=redis_url)
    assert done.exit_code == 0, done.output
    assert "for a table of vectors --embed" in Path("out.csv").read_text()
