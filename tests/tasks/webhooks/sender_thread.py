"""A sender in a thread of the test."""

import asyncio
import ssl
import threading
from typing import Any, Self

from llama_herd.tasks.connection.connect import connect_async, redis_errors
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import Dialogue, run_dialogue_async
from llama_herd.tasks.webhooks.connector import Connector
from llama_herd.tasks.webhooks.sender import Sender
from tests.chaos.harness.patience import PATIENCE_S


class SenderThread:
    """Sends what is due, as a gateway does, to private addresses too."""

    def __init__(
        self,
        redis_url: str,
        *,
        allows_private: bool = True,
        lease_s: float = 10.0,
        timeout_s: float = 15.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = redis_url
        self._options = {"lease_s": lease_s, "timeout_s": timeout_s}
        self._connector = Connector(allows_private=allows_private, tls=tls)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._has_started = threading.Event()
        self._is_frozen = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._has_started.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_frozen.set()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def freeze(self) -> None:
        """Stand still from now on, as a process that was stopped, up to the end of the test."""
        stands = threading.Event()
        for call in (stands.set, self._is_frozen.wait):
            self._loop.call_soon_threadsafe(call)
        assert stands.wait(PATIENCE_S)

    def ask_for_the_role(self) -> None:
        """Ask now, and not when a third of the lease is over."""
        self._sender._asked_s = float("-inf")

    @property
    def num_queues(self) -> int:
        """Of hosts that it knows."""
        return len(self._sender._queues)

    def _work(self) -> None:
        asyncio.run(self._send())

    async def _send(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with connect_async(self._url) as redis:

            async def run(dialogue: Dialogue[Any]) -> Any:
                with redis_errors(self._url):
                    return await run_dialogue_async(redis, dialogue)

            self._sender = Sender(run, self._connector, Ledger(), **self._options)
            async with self._sender.running():
                self._has_started.set()
                await self._stop.wait()
