"""What stands between a broken message and the worker's life.

A stock worker exits on a message that it cannot read, and some such messages are put back and end the next
worker too. Here they go to the dead letters, with the reason.
"""

import socket
from collections.abc import Callable
from typing import Any

import structlog
from celery.worker import consumer
from kombu.message import Message
from kombu.transport import redis as redis_transport
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.call import run
from llama_herd.tasks.ledger import Ledger
from llama_herd.worker import boot

log = structlog.get_logger(__name__)

#: What reading a hostile message can raise, besides the errors of the connection itself.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError)


class Channel(redis_transport.Channel):  # type: ignore[misc]
    """Reads the queue; an item that is no message is put aside instead of ending the loop."""

    _last_reply: Any = None

    def _get_client(self) -> type[Redis]:
        """kombu's client class, but it leaves what it read last with the channel."""
        channel, client = self, super()._get_client()

        class Client(client):  # type: ignore[misc, valid-type]
            def parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
                reply = super().parse_response(connection, command_name, **options)
                if command_name == "BRPOP":
                    channel._last_reply = reply
                return reply

        return Client

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except RedisError:
            raise
        except UNREADABLE as error:
            _, raw = self._last_reply
            put_aside(self.client, raw, error)
            raise redis_transport.Empty from None


class Transport(redis_transport.Transport):  # type: ignore[misc]
    """kombu's Redis transport with the guarded channel."""

    Channel = Channel


class Consumer(consumer.Consumer):  # type: ignore[misc]
    """Celery's consumer; a message that Celery cannot handle is put aside and rejected."""

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Message], Any]:
        handle = super().create_task_handler(*args, **options)

        def guarded(message: Message) -> Any:
            try:
                return handle(message)
            except RedisError:
                raise
            except UNREADABLE as error:
                put_aside(message.channel.client, message.body, error)
                return message.reject_log_error(log, self.connection_errors)

        return guarded


def put_aside(redis: Redis, raw: bytes | str, error: BaseException) -> None:
    """Keep a message that cannot be handled among the dead letters."""
    reason = type(error).__name__
    log.error("message put aside", reason=reason, num_bytes=len(raw))
    data = raw.encode() if isinstance(raw, str) else bytes(raw)
    run(redis, Ledger.of(boot.settings()).bury(data, reason, socket.gethostname()))
