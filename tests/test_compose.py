"""What the compose files promise: two CPU workers, or GPUs instead; a Redis that keeps accepted jobs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from llama_herd.cli.health_port import TIMEOUT_S
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.security.acl import Role
from llama_herd.tasks.settings_files import secret_variables
from llama_herd.worker.jobs.standing import STALL_SHOWN_S
from llama_herd.worker.settings import WorkerSettings
from tests.compose_model import GPU, MAIN, ROOT, SECURE, project, services_of
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tls import Identity

TEXT = "".join((ROOT / name).read_text() for name in (MAIN, GPU))
COMPOSE = project(MAIN)
SECURE_FILE: dict[str, Any] = yaml.safe_load((ROOT / SECURE).read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ON_GPUS: dict[str, dict[str, Any]] = project(MAIN, GPU)["services"]
WORKERS = ("worker", "second-worker", "engine-worker")


def compose_command() -> list[str]:
    """Compose itself, from version 2 on, as Docker's plugin or alone; it reads a file without an engine."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            said = subprocess.run([*command, "version", "--short"], capture_output=True, text=True)
            if said.returncode == 0 and not said.stdout.lstrip("v").startswith("1."):
                return command
    pytest.skip("no docker compose command, version 2 or newer")


@pytest.mark.long
@pytest.mark.parametrize("files", [(MAIN,), (MAIN, GPU), (MAIN, SECURE)], ids=" ".join)
@pytest.mark.parametrize("profiles", [(), ("two-models",), ("gateway", "monitoring"), ("*",)], ids=" ".join)
def test_compose_itself_starts_what_these_tests_take_it_to_start(
    files: tuple[str, ...], profiles: tuple[str, ...]
) -> None:
    options = [word for file in files for word in ("-f", str(ROOT / file))]
    options += [word for profile in profiles for word in ("--profile", profile)]
    said = subprocess.run(
        [*compose_command(), *options, "config", "--services"], capture_output=True, text=True, check=True
    ).stdout
    assert set(said.split()) == services_of(*profiles, files=files)


@pytest.mark.long
@pytest.mark.parametrize("other", [GPU, SECURE])
def test_compose_itself_takes_the_files_together_as_these_tests_do(other: str) -> None:
    files = [word for name in (MAIN, other) for word in ("-f", str(ROOT / name))]
    said = subprocess.run([*compose_command(), *files, "config"], capture_output=True, text=True, check=True)
    read, worker = yaml.safe_load(said.stdout)["services"], project(MAIN, other)["services"]["worker"]
    assert read["worker"]["image"] == worker["image"]
    assert read["worker"]["environment"].keys() >= worker["environment"].keys()
    assert read["worker"].get("command") == (["worker", "--gpus", "all"] if other == GPU else None)
    assert len(read["worker"]["volumes"]) == len(worker["volumes"])
    if other == SECURE:
        assert read["redis"]["command"][-1] == "--aclfile /run/secrets/users_acl"


def seconds(duration: str) -> float:
    match = re.fullmatch(r"(\d+)s", duration)
    assert match, duration
    return float(match[1])


def test_up_starts_redis_and_two_cpu_workers() -> None:
    assert services_of() == {"redis", "worker"}
    assert SERVICES["worker"]["deploy"]["replicas"] == 2
    assert SERVICES["worker"]["environment"]["HERD_DEVICE"] == "cpu"
    assert SERVICES["worker"]["environment"]["HERD_MEMORY_SHARE"] == "${WORKER_MEMORY_SHARE:-0.3}"


def test_a_job_for_a_model_that_is_not_in_the_file_ends_soon() -> None:
    for name in WORKERS:
        assert SERVICES[name]["environment"]["HERD_UNSERVED_TIMEOUT_S"] == "${UNSERVED_TIMEOUT_S:-600}"


def test_the_page_names_every_setting_that_compose_sets_in_the_place_of_env() -> None:
    page = (ROOT / "docs/docker.md").read_text()
    sets = {name for one in ("worker", "gateway") for name in SERVICES[one]["environment"]}
    assert sorted(name for name in sets if f"`{name}`" not in page) == []


def test_on_gpus_the_same_workers_take_the_cards() -> None:
    worker = ON_GPUS["worker"]
    assert (worker["image"], worker["deploy"]["replicas"]) == ("llama-herd:gpu", 1)
    assert worker["build"]["args"] == {"TORCH_INDEX_URL": "${GPU_TORCH_INDEX_URL:-}"}
    assert worker["build"]["context"] == SERVICES["worker"]["build"]["context"]
    assert worker["environment"]["HERD_DEVICE"] == "auto"
    assert worker["command"] == ["worker", "--gpus", "${GPUS:-all}"]


def test_a_second_model_comes_beside_the_first_under_a_name_of_its_own() -> None:
    first, second = SERVICES["worker"]["environment"], SERVICES["second-worker"]["environment"]
    assert second["HERD_SERVED_MODEL_NAME"] == "${SECOND_MODEL_NAME:-second}"
    assert second.keys() - first.keys() == {"HERD_MODEL", "HERD_SERVED_MODEL_NAME"}


def test_a_server_of_another_engine_has_a_worker_of_the_same_model_and_rows() -> None:
    server, worker = SERVICES["llama-server"], SERVICES["engine-worker"]["environment"]
    options = dict(zip(server["command"][::2], server["command"][1::2], strict=True))
    assert worker["HERD_ENGINE_URL"] == f"http://llama-server:{options['--port']}"
    assert (worker["HERD_MODEL"], worker["HERD_SLOTS"]) == (options["--model"], options["--parallel"])
    assert options["--threads"] == "${ENGINE_THREADS:-0}"  # it shares the machine with workers
    assert server["volumes"] == SERVICES["engine-worker"]["volumes"]
    assert server["profiles"] == SERVICES["engine-worker"]["profiles"]
    assert server["user"] == "10001:10001"  # that of the image, who reads the same file


def test_a_worker_stops_before_its_server_and_starts_without_it() -> None:
    needed = SERVICES["engine-worker"]["depends_on"]
    assert needed == {**SERVICES["worker"]["depends_on"], "llama-server": {"condition": "service_started"}}
    # llama-server waits for requests that it has stopped to compute.
    assert seconds(SERVICES["llama-server"]["stop_grace_period"]) == 1


def test_the_gpu_worker_reserves_every_card() -> None:
    [devices] = ON_GPUS["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (devices["driver"], devices["count"]) == ("nvidia", "all")


def test_make_takes_no_cuda_by_surprise(tmp_path: Path) -> None:
    """The rule of the Makefile, with a pip that would take such a torch."""
    pip = tmp_path / "bin" / "python"
    pip.parent.mkdir()
    pip.write_text('#!/bin/sh\necho \'{"name": "nvidia-cublas"}\' > "$(dirname "$0")/../torch.json"\n')
    pip.chmod(0o755)
    make = ["make", "-C", str(ROOT), f"VENV={tmp_path}", str(tmp_path / ".torch")]
    own = {name: value for name, value in os.environ.items() if name not in ("CUDA", "MAKEFLAGS")}
    refused = subprocess.run(make, env=own, capture_output=True, text=True)
    assert (refused.returncode, (tmp_path / ".torch").exists()) == (2, False)
    assert "make CUDA=1 to take it" in refused.stdout
    subprocess.run([*make, "CUDA=1"], env=own, check=True, capture_output=True)
    assert (tmp_path / ".torch").exists()


def test_the_workflow_says_which_torch_make_takes() -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["steps"]
    (given,) = (step.get("env", {}) for step in steps if step.get("run") == ".ci/run")
    assert given.keys() == {"TORCH_INDEX_URL", "CUDA"}


def test_make_lists_every_target_that_says_what_it_does() -> None:
    said = re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True
    )
    assert re.findall(r"^  make (\S+) ", shown.stdout, re.MULTILINE) == said


@pytest.mark.parametrize(
    "option",
    [
        "--appendonly yes",
        "--appendfsync everysec",
        "--maxmemory-policy noeviction",
        "--client-output-buffer-limit pubsub 1mb 256kb 5",
    ],
)
def test_redis_keeps_what_it_accepted(option: str) -> None:
    assert option in SERVICES["redis"]["command"]


def test_what_is_published_is_published_to_this_machine_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"redis", "gateway", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_prometheus_asks_every_worker_and_gateway_at_its_port() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy/monitoring/prometheus.yml").read_text())["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert tuple(found["names"]) == (*WORKERS, "gateway")
    ports = {SERVICES[name]["environment"]["HERD_METRICS_PORT"] for name in found["names"]}
    assert ports == {found["port"]}


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
def test_every_mounted_file_is_there(service: str) -> None:
    files = [volume.split(":")[0] for volume in SERVICES[service]["volumes"] if volume.startswith("./")]
    assert files
    assert all((ROOT / file).exists() for file in files)


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_that_stands_still_is_soon_unhealthy_and_one_that_loads_never(
    worker: str,
) -> None:
    check = SERVICES[worker]["healthcheck"]
    assert check["test"] == ["CMD", "herd", "health"]
    assert SERVICES[worker]["environment"]["HERD_METRICS_PORT"]
    assert seconds(check["timeout"]) > TIMEOUT_S
    num_checks = check.get("retries", 3)  # Docker's default
    assert STALL_SHOWN_S + num_checks * seconds(check["interval"]) <= 60
    assert num_checks * (seconds(check["interval"]) + TIMEOUT_S) <= 60  # one that does not answer at all
    assert check["start_period"] == "24h"


@pytest.mark.redis
@pytest.mark.parametrize("has_tls", [False, True])
def test_the_gateway_s_check_is_true_of_a_real_one(redis_url: str, tmp_path: Path, has_tls: bool) -> None:
    command = SERVICES["gateway"]["healthcheck"]["test"]
    port = SERVICES["gateway"]["environment"]["HERD_GATEWAY_PORT"]
    file = str(Identity.make(tmp_path, "gateway.example").file) if has_tls else ""
    env = {**os.environ, "HERD_GATEWAY_CERT_FILE": file}
    with GatewayThread(redis_url, cert_file=file, key_file=file) as one:
        own = urlsplit(one.url).port
        code = command[-1].replace(f" {port})", f" {own})")
        run = [sys.executable, *command[2:-1], code]
        assert subprocess.run(run, capture_output=True, env=env).returncode == 0
    assert subprocess.run(run, capture_output=True, env=env).returncode == 1


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_is_given_time_to_drain(worker: str) -> None:
    grace_s = WorkerSettings.model_fields["grace_s"].default
    assert seconds(SERVICES[worker]["stop_grace_period"]) > grace_s


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_of_a_service_grows_without_bound(service: str) -> None:
    settings = SERVICES[service]
    assert settings["logging"] == {"driver": "local"}
    assert all("size=" in one for one in settings.get("tmpfs", []))
    assert "ulimits" not in settings  # an engine without root refuses the whole service


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_named_exactly(service: str) -> None:
    """Ours are built here."""
    image = SERVICES[service]["image"]
    numbered = r"[a-z/]+:v?\d+\.\d+\.\d+|ghcr\.io/[a-z./-]+:server-b\d+"
    assert image.startswith("llama-herd:") or re.fullmatch(numbered, image)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_runs_without_rights_and_on_a_read_only_root(service: str) -> None:
    settings = SERVICES[service]
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]


def test_every_herd_variable_is_a_setting() -> None:
    named = set(re.findall(r"HERD_\w+", TEXT))
    assert named
    fields = WorkerSettings.model_fields.keys() | GatewaySettings.model_fields.keys()
    assert named <= {f"HERD_{name.upper()}" for name in fields}


def test_the_secure_redis_is_the_same_with_users() -> None:
    words = SECURE_FILE["services"]["redis"]["command"]
    assert words == [*SERVICES["redis"]["command"], "--aclfile /run/secrets/users_acl"]


@pytest.mark.parametrize("name", [*WORKERS, "gateway", "keys"])
def test_a_secure_service_takes_its_password_from_a_file(name: str) -> None:
    service = SECURE_FILE["services"][name]
    (variable,) = service["environment"].keys() & secret_variables(WorkerSettings).keys()
    (secret,) = service["secrets"]
    assert service["environment"][variable] == f"/run/secrets/{secret}"
    role = {"gateway": Role.GATEWAY, "keys": Role.GATEKEEPER}.get(name, Role.WORKER)
    user = role.user_in("default")
    assert SECURE_FILE["secrets"][secret]["file"].endswith(f"/{user}.password")
    assert service["environment"]["HERD_REDIS_URL"].startswith(f"redis://{user}@")
    assert ":" not in service["environment"]["HERD_REDIS_URL"].removeprefix("redis://").partition("@")[0]


def test_the_service_for_keys_starts_for_a_command_alone() -> None:
    assert SERVICES["keys"]["profiles"] == ["keys"]
    assert SERVICES["keys"]["entrypoint"] == ["herd", "keys"]


def test_what_a_gpu_worker_compiles_outlives_its_container() -> None:
    worker = ON_GPUS["worker"]
    mounts = {folder: name for name, _, folder in (one.rpartition(":") for one in worker["volumes"])}
    for variable in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        folder = f"/{Path(worker['environment'][variable]).parts[1]}"
        assert mounts[folder] in project(MAIN, GPU)["volumes"], variable
        assert re.search(rf"install -d -o 10001 .*{folder}\b", (ROOT / "Dockerfile").read_text())
