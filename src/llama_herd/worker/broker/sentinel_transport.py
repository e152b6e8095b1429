"""Our transports and results where Sentinels say which Redis is the primary."""

from typing import Any

from celery.backends.redis import SentinelBackend
from kombu.transport import redis as redis_transport

from llama_herd.tasks.connection.redis_url import DEFAULT_PORT
from llama_herd.worker import process
from llama_herd.worker.broker.queue_channel import QueueChannel
from llama_herd.worker.broker.queue_transport import QueueTransport
from llama_herd.worker.broker.result_backend import Remote, ResultBackend
from llama_herd.worker.broker.tenant_channel import TenantChannel, TenantTransport


class PrimaryChannel(redis_transport.SentinelChannel):  # type: ignore[misc]
    """Asks all Sentinels.

    kombu takes them from its connection's other addresses. But to these it also goes over after an error, by
    a transport of its own. So they are there only while the pool is made.
    """

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        client = self.connection.client
        client.alt = process.broker_urls()
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


class SentinelResultBackend(ResultBackend, SentinelBackend):  # type: ignore[misc]
    """Celery's results and chords at the primary."""


class RemoteSentinelResultBackend(Remote, SentinelResultBackend):
    """The same at another primary than that of the jobs."""
