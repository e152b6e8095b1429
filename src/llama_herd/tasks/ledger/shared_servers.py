"""Servers that several workers stand in front of: who has jobs there, and who has to be alone there."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.script_call import call

#: What a worker would send to a server: any job, or one that must be alone there. None: nothing more.
Entering = Literal["any", "alone"] | None


class SharedServer(NamedTuple):
    """How a server stands to one worker. is_taken: another one has it alone, or waits until it is alone."""

    may_enter: bool
    is_taken: bool

    @classmethod
    def parse(cls, reply: list[int]) -> Self:
        may_enter, is_taken = reply
        return cls(bool(may_enter), bool(is_taken))


@dataclass(frozen=True)
class SharedServers(Keys):
    """All calls for the servers that workers of a tenant, or of several together, stand in front of."""

    def share(
        self,
        server: str,
        owner: str,
        life_ms: int,
        *,
        has_jobs: bool,
        is_alone: bool,
        enters: Entering = None,
    ) -> RedisCall[SharedServer]:
        """Note what a worker has there, for `life_ms`, and let in what it would send if it may.

        is_alone: others have to leave, and nothing else may enter.
        """
        return call(
            "share_server",
            SharedServer.parse,
            server=self.key(f"server:{server}"),
            owner=owner,
            life_ms=life_ms,
            has_jobs=int(has_jobs),
            is_alone=int(is_alone),
            enters=enters,
        )
