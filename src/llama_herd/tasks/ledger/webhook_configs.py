"""Which tenants get webhooks of their jobs' ends, and where; and which gateway sends them."""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from llama_herd.errors import RecordUnreadable
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import read_entries
from llama_herd.tasks.ledger.script_call import call

#: Redis key of the hash. Its fields are tenants. No tenant's key has this name, which has one colon.
WEBHOOKS = "herd:webhooks"
#: Redis key that names the gateway that sends for all.
SENDER = "herd:webhooks@sender"


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """Where a tenant's webhooks go.

    hosts: further hosts that jobs may name. jobs: whether it is told of all jobs, not only of those that name
    an address. old_secret: the one before, which signs as well until `old_until_ms`; empty: none.
    """

    tenant: str
    url: str
    secret: str = field(repr=False)
    hosts: tuple[str, ...]
    jobs: bool
    created_ms: int
    old_secret: str = field(default="", repr=False)
    old_until_ms: int = 0

    def secrets_at(self, now_ms: int) -> tuple[str, ...]:
        """What signs at this time, in unix milliseconds: while receivers change to a new secret, both."""
        is_old_good = self.old_secret and now_ms < self.old_until_ms
        return (self.secret, self.old_secret) if is_old_good else (self.secret,)

    def to_json(self) -> str:
        facts = {name: getattr(self, name) for name in self.__slots__ if name != "tenant"}
        return json.dumps({"v": 1, **facts})

    @classmethod
    def parse(cls, tenant: str, raw: bytes) -> Self:
        """Raises RecordUnreadable for what we have not written."""
        try:
            facts = json.loads(raw)
            hosts = tuple(str(host) for host in facts["hosts"])
            return cls(
                tenant,
                url=str(facts["url"]),
                secret=str(facts["secret"]),
                hosts=hosts,
                jobs=bool(facts["jobs"]),
                created_ms=int(facts["created_ms"]),
                old_secret=str(facts["old_secret"]),
                old_until_ms=int(facts["old_until_ms"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise RecordUnreadable(
                f"the entry {tenant} of {WEBHOOKS} is none that this version has written. "
                f"Fix: herd webhooks remove --tenant {tenant}, then herd webhooks set"
            ) from None


class StoredConfigs(NamedTuple):
    """All tenants' webhooks, and the tenants whose entries cannot be read."""

    configs: tuple[WebhookConfig, ...]
    unreadable: tuple[str, ...]

    @classmethod
    def parse(cls, reply: dict[bytes, bytes] | list[bytes]) -> Self:
        configs, unreadable = read_entries(reply, WebhookConfig.parse)
        return cls(tuple(sorted(configs, key=lambda config: config.tenant)), unreadable)


def store_config(config: WebhookConfig) -> list[RedisCall[Any]]:
    """Store a tenant's webhooks, and tell the scripts that write ends."""
    flag = Keys(config.tenant).key("webhook")
    return [
        RedisCall("HSET", (WEBHOOKS,), (config.tenant, config.to_json()), int),
        RedisCall("HSET", (flag,), ("jobs", int(config.jobs)), int),
    ]


def find_config(tenant: str) -> RedisCall[WebhookConfig | None]:
    """A tenant's webhooks; None if it has none."""
    return RedisCall("HGET", (WEBHOOKS,), (tenant,), lambda raw: raw and WebhookConfig.parse(tenant, raw))


def all_configs() -> RedisCall[StoredConfigs]:
    """The webhooks of all tenants."""
    return RedisCall("HGETALL", (WEBHOOKS,), (), StoredConfigs.parse)


def drop_config(tenant: str) -> list[RedisCall[Any]]:
    """Forget a tenant's webhooks. The second answer says whether there were any."""
    return [
        RedisCall("DEL", (Keys(tenant).key("webhook"),), (), int),
        RedisCall("HDEL", (WEBHOOKS,), (tenant,), bool),
    ]


def hold_sender_role(who: str, for_ms: int) -> RedisCall[bool]:
    """Become or stay the gateway that sends, for `for_ms`; 0: no more. Answers whether it is this one."""
    return call("role", lambda reply: reply == 1, role=SENDER, caller=who, for_ms=for_ms)
