"""ServerWatch: whether the server is there, and is still the one that the worker was started for."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import structlog

from llama_herd.errors import BadInput
from llama_herd.worker.foreign.backend import Backend, ServerBusy, ServerFault
from llama_herd.worker.foreign.http import NotHttp, ServerAway
from llama_herd.worker.foreign.served_model import ServedFacts

log = structlog.get_logger(__name__)

#: How often the server is asked whether it is well, and how often one that is away.
INTERVAL_S, AWAY_INTERVAL_S = 1.0, 0.2
#: After so many looks its metrics are read.
LOOKS_A_METRIC = 5


class ServerWatch:
    """Asks a server again and again. One that comes back has to serve the same model with the same ids."""

    def __init__(self, backend: Backend, served: ServedFacts) -> None:
        self._backend, self._served = backend, served
        #: Since when it does not answer, by time.monotonic; None: it does.
        self.away_since_s: float | None = None
        self.kv_cache_usage = 0.0
        self._look_soon = asyncio.Event()

    def note_away(self, reason: str) -> None:
        """Note that the server does not answer, and ask it again soon."""
        if self.away_since_s is None:
            self.away_since_s = monotonic()
            log.error("the engine's server is away: jobs wait for it, none is taken", reason=reason)
        self.look_soon()

    def look_soon(self) -> None:
        """Ask it soon."""
        self._look_soon.set()

    async def run(self, on_return: Callable[[], None]) -> None:
        """Ask for ever; `on_return` hears when it is back."""
        num_looks = 0
        while True:
            await self._look(on_return)
            if num_looks % LOOKS_A_METRIC == 0 and self.away_since_s is None:
                await self._read_metrics()
            num_looks += 1
            is_away = self.away_since_s is not None
            self._look_soon.clear()
            with suppress(TimeoutError):
                if is_away:
                    await asyncio.sleep(AWAY_INTERVAL_S)
                else:
                    await asyncio.wait_for(self._look_soon.wait(), INTERVAL_S)

    async def _look(self, on_return: Callable[[], None]) -> None:
        try:
            await self._backend.check_health()
            if self.away_since_s is None:
                return
            await self._served.check_again(self._backend)
        except (ServerAway, ServerFault, ServerBusy, NotHttp, BadInput) as error:
            self.note_away(str(error))
            return
        log.info("the engine's server is back", seconds=round(monotonic() - self.away_since_s, 3))
        self.away_since_s = None
        on_return()

    async def _read_metrics(self) -> None:
        with suppress(ServerAway, NotHttp, ValueError, LookupError):
            usage = await self._backend.kv_cache_usage()
            self.kv_cache_usage = usage or 0.0
