"""What systemd is told of a service, by its sd_notify: what it does, that it is ready, that it lives."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import sleep
from typing import NamedTuple, Self

from llama_herd.tasks.protocol.health import Health

#: How often systemd is told what a service does that is not ready yet.
INTERVAL_S = 1.0
#: How often a ready service looks at itself, if systemd asks for no signs of life.
READY_INTERVAL_S = 10.0
#: Signs of life for each time within which systemd wants one.
BEATS = 4


class Systemd(NamedTuple):
    """A systemd that wants to be told, as it does with Type=notify."""

    address: str
    watchdog_s: float | None = None  # how long a service may give no sign of life; None: for ever

    @classmethod
    def of_process(cls) -> Self | None:
        """The one that has started this process, if it wants to be told."""
        address = os.environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_us = os.environ.get("WATCHDOG_USEC", "") if is_ours else ""
        return cls(address, int(watchdog_us) / 1e6 if watchdog_us.isdecimal() else None)

    def tell(self, *lines: str) -> None:
        """Send lines such as READY=1. What cannot be sent is dropped: systemd then acts by its own limits."""
        where = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one, suppress(OSError):
            one.sendto("\n".join(lines).encode(), where)


def tell_systemd_ready() -> None:
    """Tell a systemd that wants it that this process serves."""
    if (systemd := Systemd.of_process()) is not None:
        systemd.tell("READY=1")


def report_to_systemd(live: Callable[[], Health], ready: Callable[[], Health]) -> None:
    """Tell a systemd that wants it about this process, from now on to its end."""
    if (systemd := Systemd.of_process()) is not None:
        threading.Thread(
            target=_report, args=(systemd, live, ready), name="systemd report", daemon=True
        ).start()


def _report(systemd: Systemd, live: Callable[[], Health], ready: Callable[[], Health]) -> None:
    beat_s = READY_INTERVAL_S if systemd.watchdog_s is None else systemd.watchdog_s / BEATS
    has_been_ready = False
    while True:
        trouble, death = ready().reason, live().reason
        lines = [f"STATUS={death or trouble or 'ready'}"]
        if death is None:
            lines.append("WATCHDOG=1")
        if trouble is None and not has_been_ready:
            has_been_ready = True
            lines.append("READY=1")
        systemd.tell(*lines)
        sleep(beat_s if has_been_ready else min(beat_s, INTERVAL_S))
