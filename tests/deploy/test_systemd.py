"""The units for systemd: right by its own word, and by our settings and exit codes."""

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.settings_files import secret_variables
from llama_herd.worker.process import EXIT_DEVICE_LOST, EXIT_SILENT
from llama_herd.worker.settings import WorkerSettings
from tests.cli.herd_command import invoke

FOLDER = Path(__file__).parents[2] / "deploy/systemd"
UNITS = ("herd-worker@.service", "herd-gateway.service")
EACH = pytest.mark.parametrize("name", UNITS)

#: A worker exits at most so long after its grace period.
LAST_S = 3


def service(name: str) -> dict[str, list[str]]:
    """The values of each key under [Service]."""
    text = (FOLDER / name).read_text().partition("[Service]")[2].partition("[Install]")[0]
    values = defaultdict[str, list[str]](list)
    for key, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        values[key].append(value)
    return values


def variables(name: str) -> dict[str, str]:
    pairs = (word.partition("=") for line in service(name)["Environment"] for word in line.split())
    return {variable: value for variable, _, value in pairs}


def only(name: str, key: str) -> str:
    (value,) = service(name)[key]
    return value


def complaints(name: str, folder: Path, was: str = "", becomes: str = "") -> list[str]:
    """What systemd says against a unit, whose program need not be installed; not what it says of others."""
    unit = folder / name.replace("@", "@gpu0")
    text = (FOLDER / name).read_text().replace("/opt/herd/bin/herd", "/bin/true")
    unit.write_text(text.replace(was, becomes) if was else text)
    command = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    return [line for line in done.stderr.splitlines() if unit.name in line]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze command")
@EACH
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    assert complaints(name, tmp_path) == []
    (complaint,) = complaints(name, tmp_path, "RestartSec=", "RestartSecs=")
    assert "RestartSecs" in complaint


@EACH
def test_wrong_settings_are_no_reason_to_start_again(name: str) -> None:
    assert only(name, "Restart") == "on-failure"
    assert only(name, "RestartPreventExitStatus") == "2"


def test_a_redis_that_comes_up_later_ends_no_unit_for_good() -> None:
    worker, gateway = (only(name, "ExecStart").split()[1:] for name in UNITS)
    assert "--wait-for-redis" in worker
    done = invoke(*gateway, HERD_REDIS_URL="redis://127.0.0.1:1/0")
    assert done.exit_code not in (0, int(only(UNITS[1], "RestartPreventExitStatus")))


def test_a_lost_gpu_gets_a_pause_and_nothing_else_does(tmp_path: Path) -> None:
    """By the unit's own line, with a `sleep` that says how long it was asked to."""
    (tmp_path / "sleep").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "sleep").chmod(0o755)
    shell, option, words = only(UNITS[0], "ExecStopPost").split(" ", 2)

    def pause(exit_status: int) -> str:
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "EXIT_STATUS": str(exit_status)}
        command = [shell, option, words.strip("'")]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()

    pause_s = pause(EXIT_DEVICE_LOST)
    assert 30 <= float(pause_s) < float(only(UNITS[0], "TimeoutStopSec"))
    assert [pause(code) for code in (0, 2, EXIT_SILENT)] == [""] * 3


def test_each_is_given_time_to_end_what_it_has_begun() -> None:
    worker_s, gateway_s = (float(only(name, "TimeoutStopSec")) for name in UNITS)
    assert worker_s > WorkerSettings.model_fields["grace_s"].default + LAST_S
    assert gateway_s > GatewaySettings.model_fields["gateway_grace_s"].default


@EACH
def test_a_service_says_itself_when_it_is_ready(name: str) -> None:
    assert only(name, "Type") == "notify"
    assert "AF_UNIX" in only(name, "RestrictAddressFamilies")


def test_a_worker_may_load_as_long_as_it_takes_but_not_stand_still_for_a_minute() -> None:
    assert only(UNITS[0], "TimeoutStartSec") == "infinity"
    assert WorkerSettings.model_fields["stall_s"].default + float(only(UNITS[0], "WatchdogSec")) <= 60
    assert only(UNITS[0], "WatchdogSignal") == "SIGKILL"


@EACH
def test_the_secret_is_a_credential(name: str) -> None:
    credential, _, _ = only(name, "LoadCredential").partition(":")
    assert variables(name)["HERD_REDIS_URL_FILE"] == f"%d/{credential}"


@EACH
def test_every_herd_variable_is_a_setting(name: str) -> None:
    fields = {f"HERD_{one.upper()}" for one in (*WorkerSettings.model_fields, *GatewaySettings.model_fields)}
    named = {one for one in variables(name) if one.startswith("HERD_")}
    assert named <= fields | secret_variables(WorkerSettings).keys()


@EACH
@pytest.mark.parametrize("key", ["NoNewPrivileges", "ProtectHome", "RestrictNamespaces", "LockPersonality"])
def test_a_service_has_no_rights(name: str, key: str) -> None:
    assert only(name, key) == "yes"
    assert only(name, "ProtectSystem") == "strict"
    assert only(name, "CapabilityBoundingSet") == ""
    assert only(name, "User") == "herd"


def test_nothing_hides_the_gpu_or_the_notes_of_other_workers() -> None:
    hiding = {"PrivateDevices", "PrivateTmp", "ProtectClock", "DeviceAllow", "MemoryDenyWriteExecute"}
    assert hiding.isdisjoint(service(UNITS[0]))
