"""The commands around a real `herd worker`: generate, watch, cancel, health, and how it ends."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from tests.cli.herd_command import COMMAND, environment, fork_herd, invoke
from tests.local.forked_python import ForkedPython, run_forked, start_forked
from tests.local.processes import PATIENCE_S, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

PROMPT = "the llama is in the herd"

CHAT = "{{ bos_token }}{% for turn in messages %}{{ turn.role }}: {{ turn.content }}, {% endfor %}"

#: As long as a job may be, and a step: so there is time to interrupt it, more than half a minute.
LONG, STEP_S = ("--max-tokens", "4096"), "0.01"


@pytest.fixture(scope="module")
def url() -> str:
    """Where the worker's own Redis is going to be."""
    return EmbeddedRedis().url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    with Client(url, model="endless") as client:
        yield client


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never draws EOS, so that a job runs as long as it asks for; it can chat."""
    path = tmp_path_factory.mktemp("model") / "endless.gguf"
    return write_tiny_gguf(path, eos=False, context_length=8192, chat_template=CHAT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the worker runs."""
    return tmp_path_factory.mktemp("worker")


@pytest.fixture(scope="module")
def worker(url: str, endless: Path, folder: Path) -> Iterator[ForkedPython]:
    """One for all tests, with a Redis of its own; the last test ends it."""
    command = ["worker", "--with-redis", "--model", str(endless), "--name", "own"]
    slow = {"STANDSTILL": str(folder), "STANDSTILL_STEP_S": STEP_S}
    env = environment(HERD_REDIS_URL=url, TMPDIR=str(folder), **slow)
    process = start_forked(["tests.cli.worker.slow_worker", *command], env, folder / "log", folder)
    wait_until(lambda: is_healthy(url) or process.poll() is not None, "worker ready")
    yield process
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)


def is_healthy(url: str) -> bool:
    return invoke("health", "--name", "own", HERD_REDIS_URL=url).exit_code == 0


def generate(*arguments: str, **variables: str) -> str:
    done = invoke("generate", "--text", "--seed", "7", "--max-tokens", "60", *arguments, PROMPT, **variables)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_a_local_job_with_a_seed_is_the_same_each_time(endless: Path) -> None:
    one, two = (json.loads(generate("--local", "--json", "--model", str(endless))) for _ in range(2))
    for result in (one, two):
        del result["job"], result["timings"]
    assert one == two
    assert (len(one["ids"]), one["finish_reason"], one["attempts"]) == (60, "length", 1)


def test_a_prompt_may_come_by_standard_input(endless: Path) -> None:
    options = ("generate", "--local", "--model", str(endless), "--seed", "7", "--max-tokens", "20")
    assert invoke(*options, "-", stdin=f"{PROMPT}\n").stdout == invoke(*options, PROMPT).stdout


def test_the_example_of_log_probabilities_on_the_page_of_commands_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()
    (command,) = re.findall(r"^    \$ herd (generate .*logprobs.*) \\$", page, re.M)
    done = invoke(*shlex.split(command))
    assert (done.exit_code, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    told = re.findall(r'^    \["(.+?)",(-[\d.e-]+),(\[\[.*\]\])\]$', page, re.M)
    assert len(told) == len(result["ids"]) == len(result["logprobs"])
    assert [len(tops) for tops in result["top_logprobs"]] == [len(json.loads(tops)) for *_, tops in told]
    named = [result["pieces"][str(id)] for tops in result["top_logprobs"] for id, _ in tops]
    assert [result["pieces"][str(id)] for id in result["ids"]] == named[
        ::2
    ]  # the likeliest, at temperature 0


def test_a_chat_is_made_a_prompt_by_the_models_template(endless: Path, tiny_path: Path) -> None:
    options = ("generate", "--local", "--json", "--seed", "7", "--max-tokens", "8", "--model")

    def ids(*arguments: str) -> list[int]:
        found: list[int] = json.loads(invoke(*options, str(endless), *arguments).stdout)["ids"]
        return found

    assert ids("--chat", "the queue") == ids("--text", "user: the queue, ") == ids("the queue")
    assert ids("--system", "a llama", "the queue") == ids("--text", "system: a llama, user: the queue, ")
    refused = invoke(*options, str(tiny_path), "--chat", "the queue")
    assert refused.exit_code == 2
    assert "no_chat_template" in refused.stderr


def test_a_model_is_asked_as_its_files_say_and_a_line_tells(tmp_path: Path) -> None:
    own = {"temp": 0.25, "top_p": 0.5, "min_p": 7.0}  # which no job may have
    path = write_tiny_gguf(tmp_path / "own.gguf", chat_template=CHAT, sampling=own)
    options = ("generate", "--local", "--json", "--seed", "7", "--max-tokens", "8", "--model", str(path))

    def asked(*arguments: str) -> tuple[list[int], str]:
        done = invoke(*options, *arguments, "the queue")
        assert done.exit_code == 0, done.stderr
        told = (line for line in done.stderr.splitlines() if line.startswith("herd: own: "))
        return json.loads(done.stdout)["ids"], next(told, "")

    ids, told = asked()
    assert (
        told == "herd: own: as a chat (--text: as a text to go on with); its own temperature 0.25, top_p 0.5"
    )
    same, told = asked("--chat", "--temperature", "0.25", "--top-p", "0.5")
    assert same == ids
    assert told == ""
    assert asked("--text", "--temperature", "2")[1] == "herd: own: its own top_p 0.5"


@pytest.mark.usefixtures("worker")
def test_a_worker_tells_how_its_model_is_asked(url: str, client: Client) -> None:
    (worker,) = client.workers()
    assert (worker.chats, worker.own_sampling) == ("yes", {})
    done = invoke("generate", "--model", "endless", "--max-tokens", "2", PROMPT, HERD_REDIS_URL=url)
    assert done.stderr == "herd: endless: as a chat (--text: as a text to go on with)\n"
    options = ("generate", "--model", "endless", "--max-tokens", "2", "--idempotency-key", "order 7", PROMPT)
    assert [invoke(*options, HERD_REDIS_URL=url).stderr for _ in range(2)] == ["", ""]
    key_job = client.jobs(state="ended", limit=1)[0].job_id
    assert "prompt" in client.history(key_job).body


def test_a_prompt_that_is_too_long_is_bad_input(tiny_path: Path) -> None:
    refused = invoke("generate", "--local", "--model", str(tiny_path), "long " * 600)
    assert refused.exit_code == 2
    assert "at most 512" in refused.stderr


@pytest.mark.usefixtures("worker")
def test_a_job_gives_the_same_through_the_queue_and_without_it(url: str, endless: Path) -> None:
    variables = {"HERD_REDIS_URL": url}
    queued = json.loads(generate("--json", "--model", "endless", **variables))
    local = json.loads(generate("--local", "--json", "--model", str(endless)))
    same = ("ids", "text", "finish_reason", "usage", "seed", "attempts", "error")
    assert [queued[name] for name in same] == [local[name] for name in same]
    assert set(queued) == set(local)
    assert generate("--model", "endless", **variables) == queued["text"] + "\n"
    assert generate("--local", "--model", str(endless)) == local["text"] + "\n"


@pytest.mark.usefixtures("worker")
def test_a_watcher_reads_the_same_events_from_any_point(url: str, client: Client) -> None:
    job_id = client.submit(prompt=PROMPT, sampling={"max_tokens": 20})
    result = client.result(job_id, timeout_s=PATIENCE_S)
    text = invoke("watch", job_id, HERD_REDIS_URL=url)
    # As bytes: a text may have a carriage return, which stdout would read as part of a line end.
    assert (text.exit_code, text.stdout_bytes.decode()) == (0, result.text + "\n")
    lines = invoke("watch", job_id, "--json", HERD_REDIS_URL=url).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert json.loads(lines[-1])["type"] == "end"
    later = invoke("watch", job_id, "--json", "--after", "3", HERD_REDIS_URL=url)
    assert later.stdout.splitlines() == lines[3:]


@pytest.mark.usefixtures("worker")
def test_ctrl_c_cancels_the_job_and_keeps_its_text(url: str, client: Client, tmp_path: Path) -> None:
    arguments = ("generate", "--text", *LONG, "--model", "endless", PROMPT)
    with fork_herd(tmp_path, *arguments, HERD_REDIS_URL=url) as process:
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, complaint = process.stdout.read(), process.stderr.read()
    assert process.returncode == 1
    _, _, job_id, *end = complaint.split()
    assert end == ["ended:", "cancelled"]
    result = client.result(job_id, timeout_s=PATIENCE_S)
    assert 0 < len(result.ids) < 4096
    shown = "\n".join(re.split("\r\n?", result.text))  # as a pipe is read
    assert first + rest == shown + "\n"


@pytest.mark.usefixtures("worker")
def test_a_job_whose_reader_leaves_is_cancelled(url: str, client: Client, tmp_path: Path) -> None:
    """As by `| head -1`: nobody would see the rest."""
    with fork_herd(tmp_path, "generate", *LONG, "--model", "endless", PROMPT, HERD_REDIS_URL=url) as process:
        process.stdout.read(1)
        (job,) = client.jobs(state="running")
        process.stdout.close()
    assert process.returncode == 1
    assert client.result(job.job_id, timeout_s=PATIENCE_S).finish_reason == "cancelled"


@pytest.mark.usefixtures("worker")
def test_ctrl_c_waits_for_the_answer_to_its_cancel(
    url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's end may come first, and the connections end with the command."""
    order, cancel, close, closing = list[str](), Client.cancel, Client.close, Event()

    def answered_late(self: Client, job_id: str) -> None:
        cancel(self, job_id)
        closing.wait(0.5)
        order.append("cancelled")

    def noted(self: Client) -> None:
        order.append("closed")
        closing.set()
        close(self)

    def interrupt() -> None:
        wait_until(lambda: client.jobs(state="running"), "a running job")
        wait_until(lambda: signal.getsignal(signal.SIGINT) != before, "a command that takes Ctrl-C")
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Client, "cancel", answered_late)
    monkeypatch.setattr(Client, "close", noted)
    interrupting = Thread(target=interrupt)
    interrupting.start()
    invoke("generate", *LONG, "--model", "endless", PROMPT, HERD_REDIS_URL=url)
    interrupting.join()
    assert order == ["cancelled", "closed"]


@pytest.mark.usefixtures("worker")
def test_a_running_job_is_ended_by_its_worker(url: str, client: Client) -> None:
    job_id = client.submit(prompt=PROMPT, sampling={"max_tokens": 4096})
    next(client.stream(job_id, timeout_s=PATIENCE_S))
    assert invoke("cancel", job_id, HERD_REDIS_URL=url).stdout == "its worker will end it within a step\n"
    assert client.result(job_id, timeout_s=PATIENCE_S).finish_reason == "cancelled"


@pytest.mark.usefixtures("worker")
def test_a_worker_that_is_up_is_healthy(url: str) -> None:
    assert invoke("health", HERD_REDIS_URL=url).exit_code == 0


@pytest.mark.usefixtures("worker")
def test_a_worker_refuses_a_cut_model_file_in_one_line(url: str, endless: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(endless.read_bytes()[:50_000])
    done = run_forked(
        [COMMAND[-1], "worker", "--model", "cut.gguf"], environment(HERD_REDIS_URL=url), tmp_path
    )
    assert done.returncode == 2
    begun, line = done.output.splitlines()
    assert json.loads(begun)["event"] == "loading model"
    assert line.startswith("herd worker: cut.gguf: ")


@pytest.mark.usefixtures("worker")
def test_a_redis_beside_another_is_refused(url: str) -> None:
    refused = invoke("worker", "--with-redis", HERD_REDIS_URL=url)
    assert refused.exit_code == 2
    assert "is in use" in refused.stderr


@pytest.mark.program
def test_ctrl_c_ends_a_worker_and_its_redis_with_it(
    worker: ForkedPython, client: Client, folder: Path
) -> None:
    (status,) = client.workers()
    redis = next(
        child for child in psutil.Process(worker.pid).children() if "-server" in str(child.cmdline())
    )
    next(client.stream(client.submit(prompt=PROMPT, sampling={"max_tokens": 400})))
    os.killpg(worker.pid, signal.SIGINT)  # what Ctrl-C in a terminal does
    assert worker.wait(PATIENCE_S) == 0
    assert not redis.is_running()
    log = (folder / "log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    (ready,) = (line for line in lines if line["event"] == "worker ready")
    assert (ready["worker"], ready["model"], ready["queue"]) == (status.name, "endless", "herd.endless")
    assert ready["kv_cache_tokens"] == status.kv_cache_tokens > 0
    others = {line["event"] for line in lines if line["level"] != "info"}
    assert others <= {"native kernels are missing or old, steps are several times slower"}  # none is built
    assert "superuser" not in log
