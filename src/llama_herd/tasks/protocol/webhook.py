"""Webhooks: what form their addresses have, and the secrets that sign them, as Standard Webhooks has them."""

import binascii
import re
import secrets
from base64 import b64decode, b64encode
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo

MAX_URL_LENGTH = 2048

_CHARACTERS = re.compile(r"[!-~]+")
#: A name of labels, or an address.
_HOST = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?|[0-9a-f:.]{2,45}")


def check_webhook_url(url: str) -> str:
    """`url` if a webhook can have this address. Raises ValueError, which never has it."""
    if len(url) > MAX_URL_LENGTH:
        raise ValueError(f"must have at most {MAX_URL_LENGTH} characters, got {len(url)}")
    if not _CHARACTERS.fullmatch(url):
        raise ValueError("must be ASCII without spaces. Fix: percent-encode other characters")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise ValueError("must be an address like https://example.com/hook") from None
    if parts.scheme not in ("https", "http"):
        raise ValueError("must begin with https://")
    if "@" in parts.netloc:
        raise ValueError("must not have a user or password: the signature says who calls")
    if "#" in url:
        raise ValueError("must not have a fragment, which no server sees")
    if port == 0 or not _HOST.fullmatch(host):
        raise ValueError("must name a host, and a port from 1 to 65535 if any")
    return url


def host_of(url: str) -> str:
    """The host of an address in small letters; empty if it is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def url_without_query(url: str) -> str:
    """An address without its query, which may hold a secret."""
    return url.partition("?")[0]


SECRET_PREFIX = "whsec_"
#: By the specification: how many bytes a secret may have, and how many a new one has.
MIN_SECRET_BYTES, MAX_SECRET_BYTES, NEW_SECRET_BYTES = 24, 64, 32
#: The longest secret, in characters.
MAX_SECRET_LENGTH = len(SECRET_PREFIX) + 4 * -(-MAX_SECRET_BYTES // 3)

_SECRET_FIX = f'Fix: echo "{SECRET_PREFIX}$(openssl rand -base64 {NEW_SECRET_BYTES})" makes one'


def new_secret() -> str:
    return SECRET_PREFIX + b64encode(secrets.token_bytes(NEW_SECRET_BYTES)).decode()


def check_webhook_secret(text: str) -> str:
    """`text` if it is a secret. Raises ValueError, which never has it."""
    if not text.startswith(SECRET_PREFIX):
        raise ValueError(f"must begin with {SECRET_PREFIX}, as Standard Webhooks has it. {_SECRET_FIX}")
    try:
        num_bytes = len(b64decode(text.removeprefix(SECRET_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        raise ValueError(f"must be Base64 after {SECRET_PREFIX}. {_SECRET_FIX}") from None
    if not MIN_SECRET_BYTES <= num_bytes <= MAX_SECRET_BYTES:
        allowed = f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes"
        raise ValueError(
            f"must be the Base64 of {allowed} after {SECRET_PREFIX}, got that of {num_bytes}. {_SECRET_FIX}"
        )
    return text


def _check_has_webhook(secret: str, others: ValidationInfo) -> str:
    if others.data.get("webhook", "") is None:
        raise ValueError("needs webhook: the tenant's own address has the tenant's secret")
    return secret


#: Fields of a job or a batch: `webhook`, and behind it `webhook_secret`.
WebhookUrl = Annotated[str, Field(max_length=MAX_URL_LENGTH), AfterValidator(check_webhook_url)]
WebhookSecret = Annotated[
    str,
    Field(max_length=MAX_SECRET_LENGTH),
    AfterValidator(check_webhook_secret),
    AfterValidator(_check_has_webhook),
]
