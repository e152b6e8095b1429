"""What an administrator does with a tenant's webhooks: set, remove, list the outbox, retry."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from time import time
from typing import NamedTuple

from llama_herd.errors import BadInput, RecordUnreadable
from llama_herd.tasks.ledger.outbox import ListedWebhook, Outbox, WebhookEntry, webhook_message_id
from llama_herd.tasks.ledger.redis_call import both, together
from llama_herd.tasks.ledger.webhook_configs import WebhookConfig, drop_config, find_config, store_config
from llama_herd.tasks.protocol.webhook import check_webhook_secret, check_webhook_url, new_secret

#: How long the secret before signs beside a new one, so that receivers can change to it one by one.
OVERLAP_S = 86_400
#: Dead messages that one call lets be due again.
_LOT = 1000

_HOST = re.compile(r"[a-z0-9._:-]{1,253}")


class NewWebhooks(NamedTuple):
    """Webhooks as they were set. secret: the new one, shown only now; None: the old one stays."""

    config: WebhookConfig
    secret: str | None


def checked_secret(text: str) -> str:
    """A secret from a file. Raises BadInput, which never has it."""
    try:
        return check_webhook_secret(text)
    except ValueError as error:
        raise BadInput(f"--secret-file: {error}") from None


async def store_webhooks(
    tenant: str,
    url: str,
    hosts: Sequence[str],
    *,
    jobs: bool,
    secret: str | None,
    renews: bool = False,
    overlap_s: float = OVERLAP_S,
) -> NewWebhooks:
    """Say where a tenant is told of ends. Without `secret` that of before stays, unless `renews`.

    overlap_s: for how long one that does not stay signs beside the new one; 0: one from before does not
    either, from now on. Raises BadInput, and RecordUnreadable.
    """
    try:
        check_webhook_url(url)
    except ValueError as error:
        raise BadInput(f"URL: {error}") from None
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise BadInput(f"--host {host!r}: must be a host in small letters, without scheme and port")
    before: WebhookConfig | None = await find_config(tenant)
    stays = before is not None and secret in (None, before.secret) and not renews
    chosen = before.secret if before and stays else secret or new_secret()
    now_ms = int(1000 * time())
    config = WebhookConfig(tenant, url, chosen, tuple(sorted(set(hosts))), jobs, now_ms)
    if before and overlap_s and stays:
        config = replace(config, old_secret=before.old_secret, old_until_ms=before.old_until_ms)
    elif before and overlap_s:
        until_ms = now_ms + int(1000 * overlap_s)
        config = replace(config, old_secret=before.secret, old_until_ms=until_ms)
    await together(store_config(config))
    return NewWebhooks(config, None if stays or secret else chosen)


async def remove_webhooks(tenant: str) -> int:
    """Tell a tenant of nothing more, and forget its outbox; how many messages are lost. Raises BadInput."""
    outbox = Outbox(tenant)
    _, was_there = await together(drop_config(tenant))
    waiting, dead = await together([outbox.count("waiting"), outbox.count("dead")])
    await outbox.forget()
    if not was_there:
        raise BadInput(f"tenant {tenant}: has no webhooks")
    return int(waiting + dead)


async def webhook_config_of(tenant: str) -> WebhookConfig:
    """A tenant's webhooks. Raises BadInput if it has none."""
    config: WebhookConfig | None = await find_config(tenant)
    if config is None:
        raise BadInput(f"tenant {tenant}: has no webhooks. Fix: herd webhooks set URL --tenant {tenant}")
    return config


async def list_outbox(tenant: str, limit: int) -> list[ListedWebhook]:
    """List messages that wait, the first due first, then dead ones. At most `limit` of each."""
    outbox = Outbox(tenant)
    waiting, dead = await both(outbox.message_ids("waiting", limit), outbox.message_ids("dead", limit))
    places = [*((*one, False) for one in waiting), *((*one, True) for one in dead)]
    found = (await outbox.entries([message for message, *_ in places])) if places else []
    listed = []
    for (message, at_ms, is_dead), raw in zip(places, found, strict=True):
        with suppress(RecordUnreadable):
            if raw is not None:  # else it is gone by now
                listed.append(ListedWebhook(WebhookEntry.parse(message, raw), at_ms, is_dead))
    return listed


async def retry_webhook(tenant: str, name: str) -> None:
    """Let one dead message be due now, by its id or its job's. Raises BadInput if it is not dead."""
    found = await Outbox(tenant).retry([name, webhook_message_id(name)])
    if not found:
        raise BadInput(f"{name}: no dead webhook has this id, or is of this job. Fix: herd webhooks list")


async def retry_all_webhooks(tenant: str) -> int:
    """Let all dead messages be due now; how many."""
    outbox, total = Outbox(tenant), 0
    while True:
        dead = await outbox.message_ids("dead", _LOT)
        if not dead:
            return total
        total += await outbox.retry([message for message, _ in dead])
