"""Connections of redis-py whose timeout grows with what is sent: a slow line takes longer for a long call."""

from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection as AsyncConnection

#: A line that carries less in a second counts as dead.
SLOWEST_BYTES_PER_S = 20_000


T = TypeVar("T", bound="redis.Redis | redis.asyncio.Redis")


def patient(made: T) -> T:
    """Give the connections that redis-py will make patience with slow lines. Returns what was given."""
    pool: Any = made.connection_pool
    pool.connection_class = _patient_kind(pool.connection_class)
    return made


@cache
def _patient_kind(kind: Any) -> Any:
    mixin = _AsyncPatience if issubclass(kind, AsyncConnection) else _Patience
    return type(f"Patient{kind.__name__}", (mixin, kind), {})


class _Patience:
    """Adds to the timeout of a call the whole seconds that its bytes may take; its answer has as long."""

    _sock: Any
    socket_timeout: float | None
    _extra_s = 0

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        made: Any = super()
        parts = _parts(command)
        extra_s = _extra_s(parts)
        if (extra_s or self._extra_s) and self.socket_timeout is not None:
            made.send_packed_command([], check_health)  # it connects
            if (sock := self._sock) is not None:  # another thread may close the client
                sock.settimeout(self.socket_timeout + extra_s)
            self._extra_s, check_health = extra_s, False
        made.send_packed_command(parts, check_health)


class _AsyncPatience:
    """`_Patience` for asyncio, where redis-py looks at the attribute each time."""

    socket_timeout: float | None
    _extra_s = 0

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        made: Any = super()
        parts = _parts(command)
        extra_s = _extra_s(parts)
        if (extra_s or self._extra_s) and self.socket_timeout is not None:
            await made.send_packed_command([], check_health)  # it connects
            self.socket_timeout += extra_s - self._extra_s
            self._extra_s, check_health = extra_s, False
        await made.send_packed_command(parts, check_health)


def _parts(command: str | bytes | Iterable[bytes]) -> list[bytes]:
    if isinstance(command, str):
        command = command.encode()
    return [command] if isinstance(command, bytes) else list(command)


def _extra_s(parts: list[bytes]) -> int:
    return sum(map(len, parts)) // SLOWEST_BYTES_PER_S
