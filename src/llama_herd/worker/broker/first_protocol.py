"""Messages of Celery's first protocol, whose body holds what the second protocol has in headers."""

import json

from kombu.message import Message

_HEADERS = ("task", "id", "retries", "eta", "expires", "timelimit", "group", "group_index")
_EMBED = ("callbacks", "errbacks", "chord")


def upgrade(message: Message) -> None:
    """Turn a message of the first protocol into one of the second. Raises one of UNREADABLE."""
    if "task" in message.headers:
        return
    fields = json.loads(message.body)
    fields["group"] = fields.get("taskset")
    headers = {name: fields.get(name) for name in _HEADERS}
    message.headers = {**message.headers, **headers}
    embed = {name: fields.get(name) for name in _EMBED}
    message.body = json.dumps([fields["args"], fields["kwargs"], embed]).encode()
