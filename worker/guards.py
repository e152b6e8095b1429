"""What stands between a broken message and the worker's life.

A stock worker exits on a message that it cannot read, and some such messages are put back and end the next one
too. Here they go to the dead letters, with the reason.
"""

from collections.abc import Callable
from typing import Any

import structlog
from celery.worker import consumer
from kombu.message import Message
from kombu.transport import redis as redis_transport
from redis.exceptions import RedisError

from llama_herd.tasks.ledger import Ledger, run
from llama_herd.tasks.settings import Settings

log = structlog.get_logger(__name__)

#: What reading a hostile message can raise, besides the errors of the connection itself.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError)


class Channel(redis_transport.Channel):
    """Reads the queue; an item that is no message is put aside instead of ending the loop."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except RedisError:
            raise
        except UNREADABLE as error:
            put_aside(self.client, error)
            raise redis_transport.Empty from None


class Transport(redis_transport.Transport):
    """kombu's Redis transport with the guarded channel."""

    Channel = Channel


class Consumer(consumer.Consumer):
    """Celery's consumer; a message that Celery cannot handle is put aside and rejected."""

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Message], Any]:
        handle = super().create_task_handler(*args, **options)

        def guarded(message: Message) -> Any:
            try:
                return handle(message)
            except RedisError:
                raise
            except UNREADABLE as error:
                put_aside(message.channel.client, error)
                return message.reject_log_error(log, self.connection_errors)

        return guarded
