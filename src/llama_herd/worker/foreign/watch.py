"""ServerWatch: whether the server is there, and is still the one that the worker was started for."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import structlog

from llama_herd.errors import BadInput
from llama_herd.worker.foreign.backend import Backend, ServerBusy, ServerFault
from llama_herd.worker.foreign.http import ServerAway
from llama_herd.worker.foreign.served_facts import ServedFacts

log = structlog.get_logger(__name__)

#: How often the server is asked whether it is well, and how often one that is away.
INTERVAL_S, AWAY_INTERVAL_S = 1.0, 0.2
#: After so many looks it is compared again, since a proxy may have put another one in its place, and its
#: metrics are read.
LOOKS_A_COMPARISON = 5


class ServerWatch:
    """Asks a server again and again. It has to serve the same model with the same ids, also when back."""

    def __init__(self, backend: Backend, served: ServedFacts) -> None:
        self._backend, self._served = backend, served
        #: Since when it does not answer, by time.monotonic; None: it does.
        self.away_since_s: float | None = None
        self.kv_cache_usage = 0.0
        self._told = set[type[Exception]]()  # kinds of reasons that the log has since it is away
        self._num_suspicions = self._num_cleared = 0
        self._look_soon = asyncio.Event()

    @property
    def is_there(self) -> bool:
        """Whether it may be asked: it is not away, and nothing was lost since it was found well."""
        return self.away_since_s is None and self._num_suspicions == self._num_cleared

    def note_away(self, error: Exception) -> None:
        """Note that the server does not answer, or as another one, and ask it again soon."""
        if self.away_since_s is None:
            self.away_since_s = monotonic()
        if type(error) not in self._told:
            self._told.add(type(error))
            log.error("the engine's server is away: jobs wait for it, none is taken", reason=str(error))
        self.suspect()

    def suspect(self) -> None:
        """Look at once whether it is well; nothing is asked of it before."""
        self._num_suspicions += 1
        self._look_soon.set()

    async def run(self, on_return: Callable[[], None]) -> None:
        """Ask for ever; `on_return` hears when it may be asked again."""
        num_looks = 0
        while True:
            self._look_soon.clear()
            is_long = num_looks % LOOKS_A_COMPARISON == 0
            await self._look(on_return, is_long=is_long)
            if is_long and self.away_since_s is None:
                await self._read_metrics()
            num_looks += 1
            with suppress(TimeoutError):
                if self.away_since_s is not None:
                    await asyncio.sleep(AWAY_INTERVAL_S)
                else:
                    async with asyncio.timeout(INTERVAL_S):
                        await self._look_soon.wait()

    async def _look(self, on_return: Callable[[], None], *, is_long: bool) -> None:
        num_suspicions = self._num_suspicions
        try:
            if self.is_there and not is_long:
                await self._backend.check_health()
            else:
                await self._served.check_again(self._backend, is_back=self.away_since_s is not None)
        except (ServerAway, ServerFault, ServerBusy, BadInput) as error:
            self.note_away(error)
            return
        if self.is_there or num_suspicions < self._num_suspicions:  # those that came meanwhile stay
            return
        if self.away_since_s is not None:
            log.info("the engine's server is back", seconds=round(monotonic() - self.away_since_s, 3))
        self.away_since_s, self._num_cleared = None, num_suspicions
        self._told.clear()
        on_return()

    async def _read_metrics(self) -> None:
        with suppress(ServerAway, ValueError, LookupError):
            usage = await self._backend.kv_cache_usage()
            self.kv_cache_usage = usage or 0.0
