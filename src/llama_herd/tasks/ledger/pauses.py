"""Pauses: queues of which workers take no jobs, and workers that take none, each until a time or for good.

They are kept in Redis alone, so they outlive workers, and Redis itself. What was claimed before goes on.
"""

from dataclasses import dataclass

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.ledger.script_call import call

#: As a time: until somebody ends it.
FOR_GOOD_MS = 2**53 - 1

#: The ends of the keys that hold them.
PAUSES = ("paused", "drained")


def end_of(ms: int) -> int | None:
    """When a pause ends, as the scripts tell it; None: when somebody ends it."""
    return None if ms >= FOR_GOOD_MS else ms


@dataclass(frozen=True)
class Pauses(Keys):
    """All calls that pause a tenant's queues, and drain its workers.

    Those that begin one answer when it ends, None for never, and take `for_ms`, None for good. Those that end
    one answer whether there was one.
    """

    def pause(self, queue: str, for_ms: int | None = None) -> RedisCall[int | None]:
        return self._pause("paused", queue, for_ms)

    def resume(self, queue: str) -> RedisCall[bool]:
        return self._end("paused", queue)

    def drain(self, worker: str, for_ms: int | None = None) -> RedisCall[int | None]:
        return self._pause("drained", worker, for_ms)

    def undo_drain(self, worker: str) -> RedisCall[bool]:
        return self._end("drained", worker)

    def queues_after(self, now_ms: int) -> RedisCall[frozenset[str]]:
        """The queues that are paused beyond this time."""
        return RedisCall(
            "ZRANGEBYSCORE",
            (self.key("paused"),),
            (f"({now_ms}", "+inf"),
            lambda reply: frozenset(map(text, reply)),
        )

    def _pause(self, pauses: str, name: str, for_ms: int | None) -> RedisCall[int | None]:
        return call(
            "pause", end_of, pauses=self.key(pauses), name=name, for_ms=for_ms, channel=self.notices_to_all
        )

    def _end(self, pauses: str, name: str) -> RedisCall[bool]:
        return call("pause", bool, pauses=self.key(pauses), name=name, for_ms=0, channel=self.notices_to_all)
