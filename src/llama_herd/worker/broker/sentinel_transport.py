"""Our transports and results where Sentinels say which Redis is the primary."""

from typing import Any

from celery.backends.redis import SentinelBackend
from kombu.transport import redis as redis_transport
from redis import Redis

from llama_herd.tasks.sentinel_url import DEFAULT_PORT
from llama_herd.worker import process
from llama_herd.worker.broker.queue_channel import QueueChannel, QueueTransport
from llama_herd.worker.broker.result_backend import OnePool, SendingRedis, StoringRedis

#: Prefixes of keys that are not queues.
_NO_QUEUES = ("herd:", "celery-task", "chord-unlock-", "_kombu.")


class ForeignQueue(ValueError):
    """A message would go into a queue that is not its tenant's."""


def may_receive(queue: str, tenant: str) -> bool:
    """Whether a tenant's messages may go into a queue: each of our queues belongs to one tenant."""
    if queue.startswith("herd."):
        owner, colon, _ = queue.removeprefix("herd.").partition(":")
        return tenant == (owner if colon else "default")
    return not queue.startswith(_NO_QUEUES)


class TenantChannel(redis_transport.Channel):  # type: ignore[misc]
    """Sends for the tenant that the transport's options name; without a tenant, into any queue."""

    tenant: str | None = None
    from_transport_options = (*redis_transport.Channel.from_transport_options, "tenant")

    def _get_client(self) -> type[Redis]:
        return SendingRedis

    def _q_for_pri(self, queue: str, pri: int) -> str:
        """Of a queue that is no model's the plain list: which others its workers ask, only they know."""
        return str(super()._q_for_pri(queue, pri if queue.startswith("herd.") else 0))

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        if self.tenant is not None and not may_receive(queue, self.tenant):
            raise ForeignQueue(f"a message of tenant {self.tenant} may not go into another tenant's queue")
        super()._put(queue, message, **options)


class TenantTransport(redis_transport.Transport):  # type: ignore[misc]
    """kombu's Redis transport with that channel."""

    Channel = TenantChannel


class PrimaryChannel(redis_transport.SentinelChannel):  # type: ignore[misc]
    """Asks all Sentinels.

    kombu takes them from its connection's other addresses. But to these it also goes over after an error, by
    a transport of its own. So they are there only while the pool is made.
    """

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        client = self.connection.client
        client.alt = process.sentinel_urls()
        try:
            return super()._sentinel_managed_pool(asynchronous)
        finally:
            client.alt = []


class SentinelQueueChannel(QueueChannel, PrimaryChannel):
    """Reads the queues at the primary."""

    from_transport_options = (*PrimaryChannel.from_transport_options, "worker")


class SentinelQueueTransport(QueueTransport):
    """The transport that brings messages."""

    default_port = DEFAULT_PORT
    Channel = SentinelQueueChannel


class SentinelTenantChannel(TenantChannel, PrimaryChannel):
    """Sends to the primary."""

    from_transport_options = (*PrimaryChannel.from_transport_options, "tenant")


class SentinelTenantTransport(TenantTransport):
    """The transport for messages that this process sends."""

    default_port = DEFAULT_PORT
    Channel = SentinelTenantChannel


class SentinelResultBackend(OnePool, SentinelBackend):  # type: ignore[misc]
    """Celery's results and chords at the primary."""

    def _get_client(self) -> type[Redis]:
        return StoringRedis
