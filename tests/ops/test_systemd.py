"""What a service tells systemd, by a real socket of datagrams in systemd's place."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from llama_herd.ops import systemd
from llama_herd.ops.systemd import Systemd, report_to_systemd, tell_systemd_ready
from llama_herd.tasks.protocol.health import Health
from tests.chaos.harness.patience import PATIENCE_S


class Listener:
    """systemd's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.settimeout(PATIENCE_S)

    def heard(self) -> list[str]:
        """The lines of the next message."""
        return self._socket.recv(4096).decode().split("\n")

    def heard_until(self, is_it: Callable[[list[str]], bool]) -> list[str]:
        """The first message that is it."""
        while not is_it(lines := self.heard()):
            pass
        return lines

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def listener(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Listener]:
    # Nobody else's: the reports of an earlier test go on, to theirs.
    address = str(tmp_path / "notify") if request.param == "path" else f"@herd-{uuid4().hex}"
    one = Listener(address)
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setattr(systemd, "INTERVAL_S", 0.01)
    yield one
    one.close()


class Told:
    """A service's health, as a test wants it."""

    def __init__(self) -> None:
        self.trouble, self.death = "loading 7%", ""

    def live(self) -> Health:
        return Health.live(self.death)

    def ready(self) -> Health:
        return Health.ready(self.trouble)


def test_it_tells_what_it_does_and_once_that_it_is_ready(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    told = Told()
    report_to_systemd(told.live, told.ready)
    for _ in range(3):
        assert listener.heard() == ["STATUS=loading 7%", "WATCHDOG=1"]
    told.trouble = ""
    assert listener.heard_until(lambda lines: "READY=1" in lines) == ["STATUS=ready", "WATCHDOG=1", "READY=1"]
    for _ in range(3):
        assert listener.heard() == ["STATUS=ready", "WATCHDOG=1"]
    told.trouble = told.death = "no layer of the model has finished for 30 s"
    lines = listener.heard_until(lambda lines: "WATCHDOG=1" not in lines)
    assert lines == [f"STATUS={told.death}"]
    for _ in range(3):
        assert listener.heard() == lines


def test_who_needs_no_signs_of_life_is_told_that_it_is_ready(listener: Listener) -> None:
    tell_systemd_ready()
    assert listener.heard() == ["READY=1"]


def test_signs_of_life_are_for_the_process_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    for pid, watchdog_s in ((os.getpid(), 30.0), (1, None)):
        monkeypatch.setenv("WATCHDOG_PID", str(pid))
        assert Systemd.of_process() == Systemd("/run/notify", watchdog_s)


@pytest.mark.parametrize("address", ["", "vsock:2:1", "nothing"])
def test_nobody_is_told_who_does_not_ask(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert Systemd.of_process() is None


def test_a_systemd_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    Systemd(str(tmp_path / "gone")).tell("READY=1")
