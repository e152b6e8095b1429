"""The commands without a worker: what they say, what they refuse, and what they leave unimported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.cli.terminal import harmless
from llama_herd.extras import install_command
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.worker.loading import hub_model
from tests.cli.herd_command import environment, invoke

pytestmark = pytest.mark.usefixtures("away")

#: No Redis listens on port 1.
NO_REDIS = {"HERD_REDIS_URL": "redis://user:secret@127.0.0.1:1/0"}
COMMANDS = (
    *("demo", "worker", "fake-worker", "redis", "generate", "batch", "watch", "cancel", "purge", "dead"),
    *("status", "pull", "inspect", "tokenize", "doctor", "health", "settings"),
)


def test_settings_are_shown_with_what_they_mean() -> None:
    shown = invoke("settings", HERD_SLOTS="7").stdout
    assert "# Most sequences in the batch at a time. Absent: 32, and on a GPU 4 for each GB" in shown
    assert "\nHERD_SLOTS=7\n" in shown
    lines = [line for line in shown.splitlines() if line]
    assert all(line.startswith("# ") for line in lines[::2])
    assert all(re.match(r"#?HERD_\w+=", line) for line in lines[1::2])


def test_help_names_every_command_and_version_answers() -> None:
    shown = invoke("--help")
    assert shown.exit_code == 0
    assert all(f"\n  {command} " in shown.stdout for command in COMMANDS)
    groups = (invoke(group, "--help").stdout for group in ("dead", "keys", "webhooks", "kernels"))
    cut_off = re.compile(r"^  [a-z].*\.\.\.$", re.MULTILINE)
    assert [line for text in (shown.stdout, *groups) for line in cut_off.findall(text)] == []
    assert invoke("--version").stdout.startswith("llama-herd ")


@pytest.mark.parametrize("command", ["generate", "batch"])
def test_help_tells_what_a_job_has_where_an_option_is_absent(command: str) -> None:
    shown = " ".join(invoke(command, "--help").stdout.split())
    # Of another option nothing: typer's newer versions name a number <int>, older ones INTEGER.
    told = dict(re.findall(r"--([a-z-]+) (?:<\w+>|[A-Z]+) (?:(?!--).)*[^\\]\[default: \(([\d.]+)\)\]", shown))
    fields = {**GenerationJob.model_fields, **SamplingParams.model_fields}
    assert told.keys() >= {"max-tokens", "temperature"}
    assert told == {name: str(fields[name.replace("-", "_")].default) for name in told}


def test_help_is_short_too_and_a_shell_can_be_told_to_complete() -> None:
    assert invoke("-h").stdout == invoke("--help").stdout
    assert invoke("dead", "list", "-h").stdout.startswith("Usage: ")
    assert "--install-completion" in invoke("-h").stdout


def modules_after(*arguments: str) -> set[str]:
    """What a fresh interpreter has imported once a command has run."""
    code = (
        "import contextlib, sys\n"
        "from llama_herd.cli import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, env=environment(**NO_REDIS), capture_output=True, text=True, check=True, timeout=50
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.long
def test_help_imports_next_to_nothing() -> None:
    assert not modules_after("--help") & {"pydantic", "redis", "celery", "rich", "torch"}


@pytest.mark.long
def test_a_client_command_imports_neither_torch_nor_celery() -> None:
    modules = modules_after("generate", "hello")
    assert "redis" in modules
    assert not modules & {"torch", "gguf", "numpy", "tokenizers", "structlog", "celery"}


@pytest.mark.parametrize(
    ("arguments", "variables", "complaint"),
    [
        *(
            pytest.param(
                arguments,
                NO_REDIS,
                "redis://user:***@127.0.0.1:1/0 cannot be reached",
                marks=pytest.mark.long,
            )
            for arguments in (["generate", "a llama"], ["worker"])
        ),
        (["status"], {"HERD_REDIS_URL": "nonsense"}, "HERD_REDIS_URL: must be the URL of a Redis"),
        (["status"], {"HERD_LEASE_MS": "abc", "HERD_TENANT": "a b"}, "HERD_LEASE_MS='abc': input should be"),
        (["worker", "--slots", "0", "--device", "tpu"], {}, "HERD_SLOTS='0': input should be greater"),
        (["worker", "--name", "a b"], {}, "--name must be"),
        (["worker", "--gpus", "0,x"], {}, "--gpus 0,x: must be all, or numbers"),
        (["worker", "--gpus", "all"], {"PATH": ""}, "--gpus all, but the GPUs here are: none"),
        (["worker", "--gpus", "0", "--device", "cpu"], {}, "leave out --device and --name"),
        (["worker", "--with-redis"], {"HERD_REDIS_URL": "redis://elsewhere/0"}, "redis://elsewhere/0"),
        (
            ["redis"],
            {"HERD_REDIS_URL": "redis://elsewhere/0"},
            "redis://elsewhere/0. Fix: leave out herd redis",
        ),
        (["redis", "--port", "0", "--dir", "/proc/x"], {}, "/proc/x cannot be used: No such file"),
        (["generate", "--local", "--top-p", "7", "a llama"], {}, "sampling.top_p: input should be"),
        (["generate", "--model", "./a/b", "a llama"], {}, "HERD_MODEL_NAME='./a/b'"),
        (["generate", "--system", "\0", "a llama"], NO_REDIS, "messages.0.content: must not contain a NUL"),
        (["generate", "--deadline-ms", "5000", "a llama"], NO_REDIS, "is a time in 1970, got 5000"),
        (["generate", "--timeout", "soon", "a llama"], NO_REDIS, "--timeout soon: must be a time such as"),
        (["generate", "--set", "top_k", "a llama"], NO_REDIS, "--set top_k: must be followed by"),
        (
            ["generate", "--set", "top_k=" + "[" * 100_000, "a llama"],
            NO_REDIS,
            "--set top_k: must be followed",
        ),
        (["generate", "--set", "max_token=2", "a llama"], NO_REDIS, "field. Did you mean max_tokens?"),
        (["generate", "--set", "top_k=-2", "a llama"], NO_REDIS, "sampling.top_k: input should be greater"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], variables: dict[str, str], complaint: str
) -> None:
    done = invoke(*arguments, **variables)
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("herd: ")
    assert complaint in line
    assert "secret" not in line
    assert "llama" not in line


@pytest.mark.parametrize("arguments", [("tokenize",), ("demo", "--web", "--json")], ids=" ".join)
def test_no_model_is_fetched_for_a_command_that_cannot_be(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = list[object]()
    monkeypatch.setattr(hub_model, "with_model_here", fetched.append)
    assert invoke(*arguments, HERD_MODEL="hf:owner/none").exit_code == 2
    assert fetched == []


def broken_models(folder: Path, tiny: Path) -> dict[str, tuple[Path, str]]:
    """Files that are no model for us, by what is wrong with them, and what is to be said."""
    whole = tiny.read_bytes()
    (folder / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (folder / "page.gguf").write_bytes(b"<!DOCTYPE html><html><body>404 not found</body></html>")
    name = b"blk.0.attn_q.weight"
    type_at = whole.index(name) + len(name) + 4 + 2 * 8
    (folder / "odd.gguf").write_bytes(whole[:type_at] + (250).to_bytes(4, "little") + whole[type_at + 4 :])
    return {
        "missing": (folder / "none.gguf", "none.gguf: no such file"),
        "cut": (folder / "cut.gguf", "is damaged or cut off"),
        "foreign": (folder / "page.gguf", "a GGUF file is needed"),
        "odd type": (folder / "odd.gguf", "'blk.0.attn_q.weight'"),
    }


@pytest.mark.parametrize("kind", ["missing", "cut", "foreign", "odd type"])
def test_a_model_file_that_cannot_be_used_is_one_line(tiny_path: Path, tmp_path: Path, kind: str) -> None:
    path, complaint = broken_models(tmp_path, tiny_path)[kind]
    done = invoke("generate", "--local", "--model", str(path), "a llama")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert path.name in line
    assert complaint in line


@pytest.mark.parametrize(
    "arguments", [("worker",), ("demo",), ("generate", "--local", "a llama"), ("inspect",), ("tokenize", "a")]
)
def test_without_the_extra_a_command_names_it(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = invoke(*arguments)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "torch" in line
    assert install_command("worker") in line


def test_a_variable_that_is_no_setting_brings_a_warning_with_the_nearest_one() -> None:
    done = invoke("settings", HERD_SLOT="3", HERD_MODLE="x")
    assert done.exit_code == 0
    warnings = [(line.split()[1], line.split()[-1]) for line in done.stderr.splitlines()]
    assert warnings == [("HERD_MODLE", "HERD_MODEL"), ("HERD_SLOT", "HERD_SLOTS")]


def test_settings_marks_defaults_and_masks_secrets() -> None:
    lines = invoke("settings", HERD_SLOTS="3", **NO_REDIS).stdout.splitlines()
    assert "HERD_REDIS_URL=redis://user:***@127.0.0.1:1/0" in lines
    assert "HERD_SLOTS=3" in lines
    assert "#HERD_TENANT=default" in lines


def test_standard_input_that_is_no_text_is_refused() -> None:
    done = invoke("generate", "-", stdin=b"a \xff", **NO_REDIS)
    assert done.exit_code == 2
    assert done.stderr == "herd: standard input is not UTF-8 text: byte 2 is invalid\n"


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert harmless("a\x1b[2Jb\x00\x9b\tc\nd\x7fé") == "a[2Jb\tc\ndé"


# With a Redis, but no worker.

with_redis = pytest.mark.redis


@with_redis
def test_a_job_that_is_not_there_is_named(redis_url: str) -> None:
    for command in ("watch", "cancel"):
        done = invoke(command, "nothing", HERD_REDIS_URL=redis_url)
        assert done.exit_code == 2
        assert done.stderr.startswith("herd: no job nothing: it was never submitted")


@with_redis
def test_a_waiting_job_is_cancelled_and_then_watched_to_its_end(redis_url: str) -> None:
    with Client(redis_url) as client:
        job_id = client.submit(prompt="a llama")
    assert invoke("cancel", job_id, HERD_REDIS_URL=redis_url).stdout == "cancelled\n"
    assert invoke("cancel", job_id, HERD_REDIS_URL=redis_url).stdout == "had already ended\n"
    watched = invoke("watch", job_id, HERD_REDIS_URL=redis_url)
    assert watched.exit_code == 1
    assert watched.stderr == f"herd: job {job_id} ended: cancelled\n"


@with_redis
def test_status_counts_jobs_and_workers(redis: Redis, redis_url: str) -> None:
    assert "no worker is up" in invoke("status", HERD_REDIS_URL=redis_url).stdout
    worker = WorkerStatus(name="a@b", state="ready", model="tales", device="cpu", slots=4, running=3)
    run_call(redis, Reports().report_worker(worker))
    with Client(redis_url) as client:
        client.submit(prompt="a llama")
    shown = invoke("status", HERD_REDIS_URL=redis_url).stdout
    assert "1 message in herd.tales; 1 job waiting, 0 running" in shown
    assert "a@b" in shown
    assert "3/4" in shown
    found = json.loads(invoke("status", "--json", HERD_REDIS_URL=redis_url).stdout)
    assert (found["depth"], found["workers"][0]["name"]) == (1, "a@b")


@with_redis
@pytest.mark.parametrize(("kind", "held"), [("hash", "a hash, not a list"), ("", "not a list")])
def test_status_names_a_queue_that_is_left_out_and_the_fix_once(
    redis: Redis, redis_url: str, kind: str, held: str
) -> None:
    """However many workers leave it out, and whether they may ask for the type or not."""
    plain = {"state": "ready", "model": "tales", "device": "cpu", "slots": 4}
    spoilt = {"left_out": "herd.tales", "spoilt_key": "herd.tales\x06\x163", "spoilt_type": kind}
    for name in ("a@b", "c@d"):
        run_call(
            redis, Reports().report_worker(WorkerStatus.model_validate({"name": name, **plain, **spoilt}))
        )
    run_call(redis, Reports().report_worker(WorkerStatus.model_validate({"name": "e@f", **plain})))
    shown = invoke("status", HERD_REDIS_URL=redis_url).stdout
    fix = rf'its key "herd.tales\x06\x163" is {held}. Fix: delete or rename it'
    assert [line for line in shown.splitlines() if "left out" in line] == [f"herd.tales is left out: {fix}"]
    found = json.loads(invoke("status", "--json", HERD_REDIS_URL=redis_url).stdout)
    told = {worker["name"]: {key: worker[key] for key in spoilt} for worker in found["workers"]}
    assert told == {"a@b": spoilt, "c@d": spoilt, "e@f": dict.fromkeys(spoilt, "")}


@with_redis
def test_health_asks_for_a_ready_worker_of_this_machine(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")

    def is_healthy(*arguments: str) -> bool:
        done = invoke("health", *arguments, HERD_REDIS_URL=redis_url)
        assert len(done.stderr.splitlines()) == done.exit_code
        return done.exit_code == 0

    def report(name: str, state: str) -> None:
        status = WorkerStatus(name=name, state=state, model="m", device="cpu", slots=1)
        run_call(redis, Reports().report_worker(status))

    assert not is_healthy()
    report("one@elsewhere", "ready")
    report("one@box", "loading")
    assert not is_healthy()
    report("one@box", "ready")
    assert is_healthy()
    assert is_healthy("--name", "one")
    assert not is_healthy("--name", "two")


@pytest.mark.long
def test_health_knows_no_other_exit_code_than_0_and_1() -> None:
    done = invoke("health", **NO_REDIS)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
