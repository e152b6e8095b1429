"""Reads one queue as a worker does, and pushes messages to it as anybody may."""

import json
from typing import Any
from uuid import uuid4

import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu.message import Message
from redis import Redis

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.protocol.priority import NORMAL

QUEUE = "herd.m"
NOTES, TIMES = Keys().unacked_key, f"{Keys().unacked_key}_index"


class Reader:
    """Reads one queue as a worker does, with so many places."""

    def __init__(self, connection: Connection, prefetch: int = 0) -> None:
        self.messages: list[Message] = []
        self.connection = connection
        self.channel = connection.default_channel
        queue = Queue(QUEUE, Exchange(QUEUE), QUEUE)
        self.consumer = Consumer(self.channel, [queue], on_message=self.messages.append)
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def read(self) -> list[str]:
        """What one look at Redis brings: the tags."""
        before = len(self.messages)
        self.connection.drain_events(timeout=60)
        return [own_tag(message) for message in self.messages[before:]]

    def wait(self) -> None:
        """Look at empty lists, and be told from now on when one changes."""
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=0.1)


def own_tag(message: Message) -> str:
    """The tag that its sender gave a message, whatever it is noted under."""
    return str(message.properties["delivery_tag"])


def message(tag: Any = None, body: str = "") -> str:
    properties = {"delivery_tag": tag, "delivery_info": {"exchange": "", "routing_key": QUEUE}}
    return json.dumps({"body": body, "properties": properties, "headers": {"id": str(uuid4())}})


def push(redis: Redis, *tags: Any, lane: str = NORMAL) -> None:
    for tag in tags:
        redis.lpush(QUEUE + lane, message(tag))
