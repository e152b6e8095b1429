"""The channel that sends a job's links and chains. A send that Redis refuses for good is not repeated.

A worker of several tenants may push into the queues of all of them, and the sender of a link chooses its
queue. So a link may not go into a queue of the worker's other tenants.
"""

from functools import cache
from typing import Any

from celery.app.amqp import Queues
from kombu import Queue
from kombu.transport import redis as redis_transport
from redis import Redis

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError
from llama_herd.worker.broker.result_backend import SendingRedis

#: Prefixes of keys that are not queues.
_NO_QUEUES = ("herd:", "celery-task", "chord-unlock-", "_kombu.")
#: A sender may name any number of lists, of any length: so many are known, or watched, of so many characters.
MAX_LISTS, MAX_NAME = 1000, 255


@cache
def sent_links(tenant: str | None) -> set[str]:
    """Lists into which this process has sent a tenant's links, MAX_LISTS at most; None: its one tenant's."""
    return set()


def note_link(tenant: str | None, queue: str) -> None:
    """Note that a message of a tenant went into a queue; those of our queues are no links."""
    links = sent_links(tenant)
    if not queue.startswith("herd.") and len(links) < MAX_LISTS and len(queue) <= MAX_NAME:
        links.add(queue)


def may_receive(queue: str, tenant: str) -> bool:
    """Whether a tenant's messages may go into a queue: each of our queues belongs to one tenant."""
    if queue.startswith("herd."):
        owner, colon, _ = queue.removeprefix("herd.").partition(":")
        return tenant == (owner if colon else "default")
    return not queue.startswith(_NO_QUEUES)


class QueuesOfLinks(Queues):  # type: ignore[misc]
    """Celery's queues. One that only a sender of links has named is made for each of these, and not kept."""

    def __missing__(self, name: str) -> Queue:
        queue = super().__missing__(name)
        self.pop(name, None)
        return queue


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
            raise GenerationError(
                ErrorCode.REFUSED,
                f"a message of tenant {self.tenant} may not go into another tenant's queue",
            )
        super()._put(queue, message, **options)
        note_link(self.tenant, queue)
        if len(self.state.queue_index) > MAX_LISTS:  # kombu declares again what it has forgotten
            self.state.clear()
            self.connection.client.declared_entities.clear()


class TenantTransport(redis_transport.Transport):  # type: ignore[misc]
    """kombu's Redis transport with that channel."""

    Channel = TenantChannel


class SocketTenantTransport(TenantTransport):
    """The same at a socket file, whose address the channel reads by itself."""

    can_parse_url = True
