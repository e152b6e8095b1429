"""Sends what a job's message leads to, such as links and chains; what Redis refuses for good is sent once.

A worker of several tenants may push into the queues of all of them, and where a link leads is its sender's
word: it goes to none of the worker's other tenants.
"""

from typing import Any

from kombu.transport import redis as redis_transport
from redis import Redis

from llama_herd.worker.broker.result_backend import SendingRedis

#: What the names of keys begin with that are not queues.
_NO_QUEUES = ("herd:", "celery-task", "chord-unlock-", "_kombu.")


class ForeignQueue(ValueError):
    """A message leads into a queue that is not its tenant's."""


def may_receive(queue: str, tenant: str) -> bool:
    """Whether a tenant's messages may lead there: a queue of ours is one tenant's, any other is nobody's."""
    if queue.startswith("herd."):
        owner, colon, _ = queue.removeprefix("herd.").partition(":")
        return tenant == (owner if colon else "default")
    return not queue.startswith(_NO_QUEUES)


class TenantChannel(redis_transport.Channel):  # type: ignore[misc]
    """Sends for the tenant that the transport's options name; without one, wherever it is asked to."""

    tenant: str | None = None
    from_transport_options = (*redis_transport.Channel.from_transport_options, "tenant")

    def _get_client(self) -> type[Redis]:
        return SendingRedis

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        if self.tenant is not None and not may_receive(queue, self.tenant):
            raise ForeignQueue(f"a message of tenant {self.tenant} leads into a queue that is not its own")
        super()._put(queue, message, **options)


class TenantTransport(redis_transport.Transport):  # type: ignore[misc]
    """kombu's Redis transport with that channel."""

    Channel = TenantChannel
