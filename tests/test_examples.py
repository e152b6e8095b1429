"""The examples run as they stand, and the README shows one as it is."""

import csv
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks import Client
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from llama_herd.testing import FakeHerd
from tests.cli.gateway_process import GatewayProcess
from tests.local.processes import WorkerProcess, wait_until
from tests.tool_model import write_tool_model

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

pytestmark = [pytest.mark.redis, pytest.mark.program]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    with EmbeddedRedis() as server, WorkerProcess(server.url, BUNDLED_MODEL, "examples", log):
        yield server.url


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "HERD_REDIS_URL": url, "PYTHONUNBUFFERED": "1"}


def start(url: str, name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    return subprocess.Popen(command, env=environment(url), stdout=subprocess.PIPE, text=True)


def run(url: str, name: str) -> str:
    with start(url, name) as process:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return output


def test_the_client_streams_a_job_and_reads_its_result(url: str) -> None:
    *text, last = run(url, "client.py").splitlines()
    assert len(" ".join(text).split()) > 10
    assert re.match(r"(stop|length) prompt_tokens=\d+ completion_tokens=\d+", last)


def test_a_celery_shop_enqueues_without_our_code(url: str) -> None:
    job_id, text = run(url, "send_task.py").split("\n", 1)
    assert len(job_id) == 36
    assert len(text.split()) > 10


def test_a_bare_subscriber_reads_what_is_published(url: str) -> None:
    subscriber = start(url, "subscribe.py", "watched")
    with subscriber as process, Client(url) as client, Redis.from_url(url) as redis:
        wait_until(lambda: redis.pubsub_numsub("herd:default:tokens:watched")[0][1], "subscribed")
        client.submit(prompt="Once upon a time", sampling={"max_tokens": 5}, job_id="watched")
        output, _ = process.communicate(timeout=60)
    lines = output.splitlines()
    assert lines[0] == "1 started "
    assert lines[-1].split()[1] == "end"


def test_the_readme_shows_the_example_as_it_is() -> None:
    example = (ROOT / "examples" / "client.py").read_text().split('"""\n\n', 1)[1]
    assert example.strip() in README


def test_a_batch_runs_from_python_in_order(url: str) -> None:
    lines = run(url, "batch.py").splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in range(20)]
    assert "failed" not in " ".join(lines)


def test_chains_a_chord_and_an_errback_go_on_in_the_shops_own_worker(url: str) -> None:
    with shop(url, "celery_canvas"):
        *lines, told = run(url, "celery_canvas.py").splitlines()
    assert [10 < int(num_words) < 60 for num_words in lines] == [True, True, True]
    assert re.match(r"failed: .*invalid_job.*colour: unknown field", told)


def test_what_a_task_finds_is_embedded_and_ranked() -> None:
    with FakeHerd(["embedder", "reranker"]) as herd, shop(herd.url, "celery_vectors"):
        stored, best, num_vectors = run(herd.url, "celery_vectors.py").splitlines()
    assert re.fullmatch(r"3 vectors, \d+ tokens", stored)
    assert (best, num_vectors) == ("Who spits? Llamas do.", "768")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_workers_that_an_example_needs_serve_the_queues_that_it_names(path: Path) -> None:
    example = path.read_text()
    queues = {*re.findall(r'queue="herd\.(\w+)"', example)} - {"tales"}
    workers = re.findall(r"^(?:HERD_MODEL=\S+ )?herd worker.*$", example, re.MULTILINE)
    served = {name for worker in workers for name in re.findall(r"--served-model-name (\w+)", worker)}
    assert served == queues
    assert not workers or served or "\nexport HERD_MODEL_NAME=" in example


def test_a_chain_gets_an_object_of_its_class(url: str) -> None:
    with shop(url, "extraction"):
        (line,) = run(url, "extraction.py").splitlines()
    assert re.fullmatch(r"(fox|owl|otter): [0-8] legs", line)


def test_a_model_calls_a_function_and_hears_what_it_returns(tmp_path: Path) -> None:
    model = write_tool_model(tmp_path / "tools.gguf")
    log = tmp_path / "log"
    with EmbeddedRedis() as server, WorkerProcess(server.url, model, "tools", log, model_name="tales"):
        called, *_ = run(server.url, "tool_calls.py").splitlines()
    assert re.fullmatch(r"called: \{'city': '(Oslo|Lima)', 'degrees': -?\d+\}", called)


def test_a_service_is_tested_without_a_model() -> None:
    """By the line of docs/testing.md, whose environment has pytest and none of its plugins."""
    line = ["-q", "-p", "no:cacheprovider", "-p", "no:timeout", "examples/test_a_service.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *line], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert re.search(r"^5 passed in ", done.stdout, re.M), done.stdout + done.stderr


def documented(language: str, name: str = "structured_outputs.md") -> str:
    """The last code in this language on a page."""
    page = (ROOT / "docs" / name).read_text()
    *_, last = re.finditer(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return last[1]


def run_shell(code: str, url: str, folder: Path) -> None:
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env = environment(url) | path
    subprocess.run(["sh", "-ec", code], cwd=folder, env=env, check=True, capture_output=True, timeout=60)


def test_a_table_comes_out_with_its_columns_and_the_fields_of_the_answers(url: str, tmp_path: Path) -> None:
    run_shell(documented("sh", "batch.md"), url, tmp_path)
    with (tmp_path / "out.csv").open() as file:
        table = csv.DictReader(file)
        fox, owl = table
    assert [*(table.fieldnames or ())][:4] == ["id", "animal", "input_text", "custom_id"]
    assert [(row["id"], row["animal"], row["error"]) for row in (fox, owl)] == [
        ("7", "fox", ""),
        ("8", "owl", ""),
    ]
    assert {"kind": fox["kind"], "rooms": int(fox["rooms"])} == json.loads(fox["text"])


def test_a_batch_in_python_says_how_it_stands(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", documented("python", "batch.md")],
        env=environment(url),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.endswith("3 of 3 done, 0 failed\n")


def test_each_row_of_a_file_gets_an_object(url: str, tmp_path: Path) -> None:
    run_shell(documented("sh"), url, tmp_path)
    with (tmp_path / "animals.csv").open() as file:
        animals = [json.loads(row["text"]) for row in csv.DictReader(file)]
    assert [animal.keys() for animal in animals] == [{"kind", "legs"}] * 2
    assert {animal["kind"] for animal in animals} <= {"fox", "owl"}


def test_openais_client_gets_an_object(url: str, tmp_path: Path) -> None:
    with GatewayProcess(url, tmp_path / "gateway.log") as gateway, Redis.from_url(url) as redis:
        key = run_dialogue(redis, create_key("example", "default", KeyRole.PRODUCER))
        done = subprocess.run(
            [sys.executable, "-c", documented("python")],
            env=os.environ | {"OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": key},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert re.fullmatch(r"kind='(fox|owl)' legs=-?\d+\n", done.stdout)


@contextmanager
def shop(url: str, name: str) -> Iterator[None]:
    """A Celery worker of a shop's own."""
    options = ["--workdir", str(ROOT / "examples"), "-A", name, "worker", "--pool", "solo"]
    command = [sys.executable, "-m", "celery", *options, "--without-mingle", "--without-gossip"]
    with ended(
        subprocess.Popen(command, env=environment(url), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    ):
        yield


@contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """The process ends with the test."""
    with process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def served(url: str, *command: str, bind: str) -> Iterator[str]:
    """The address of a web server. It is given a socket that listens: who connects early waits there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fd = listener.fileno()
        arguments = [sys.executable, "-m", *command, *bind.format(fd=fd).split()]
        with ended(subprocess.Popen(arguments, env=environment(url), pass_fds=[fd])):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def ask(
    address: str, body: bytes | None = None, method: str | None = None, **headers: str
) -> tuple[int, str]:
    """Status and body of an answer."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urlopen(Request(address, body, given, method=method), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def post(address: str, **fields: object) -> str:
    status, body = ask(f"{address}/jobs", json.dumps(fields).encode())
    assert status == 202, body
    return str(json.loads(body)["id"])


@pytest.fixture(scope="module")
def fastapi_site(url: str) -> Iterator[str]:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    app = ("uvicorn", "--app-dir", str(ROOT / "examples"), "fastapi_sse:app", "--log-level", "warning")
    with served(url, *app, bind="--fd {fd}") as address:
        yield address


def test_a_browser_that_comes_back_misses_no_event(fastapi_site: str) -> None:
    job_id = post(fastapi_site, prompt="Once upon a time", sampling={"max_tokens": 8})
    events = f"{fastapi_site}/jobs/{job_id}/events"
    status, everything = ask(events)
    blocks = everything.split("\n\n")[:-1]
    assert (status, blocks[0].split("\n")[:2]) == (200, ["id: 1", "event: started"])
    assert [block.split("\n")[0] for block in blocks] == [f"id: {n}" for n in range(1, len(blocks) + 1)]
    assert ask(events, Last_Event_ID="3") == (200, "\n\n".join([*blocks[3:], ""]))
    assert ask(events, Last_Event_ID=str(len(blocks))) == (204, "")


def test_a_web_service_answers_errors_by_their_status(fastapi_site: str) -> None:
    assert ask(f"{fastapi_site}/jobs/unknown/events")[0] == 404
    assert ask(f"{fastapi_site}/jobs", b"{}")[0] == 422
    assert ask(f"{fastapi_site}/jobs", b'{"prompt": "a"}', Idempotency_Key="order-7")[0] == 202
    assert ask(f"{fastapi_site}/jobs", b'{"prompt": "b"}', Idempotency_Key="order-7")[0] == 409
    job_id = post(fastapi_site, prompt="Once", not_before=int(1e13))
    assert ask(f"{fastapi_site}/jobs/{job_id}", method="DELETE")[0] == 200


def test_one_client_serves_all_processes_of_a_preforked_site(url: str) -> None:
    pytest.importorskip("django")
    pytest.importorskip("gunicorn")
    options = ["--chdir", str(ROOT / "examples"), "--preload", "--workers", "2", "--threads", "4"]
    app = ("gunicorn", *options, "--log-level", "error", "django_site:application")
    with served(url, *app, bind="--bind fd://{fd}") as address, ThreadPoolExecutor(8) as pool:
        prompts = [f"Once upon a time, number {number}" for number in range(8)]
        ids = list(pool.map(lambda prompt: post(address, prompt=prompt, sampling={"max_tokens": 8}), prompts))
        answers = list(pool.map(lambda job_id: ask(f"{address}/jobs/{job_id}"), ids))
        assert ask(f"{address}/jobs/unknown")[0] == 404
    with Client(url) as client:
        assert answers == [(200, client.result(job_id).text) for job_id in ids]
