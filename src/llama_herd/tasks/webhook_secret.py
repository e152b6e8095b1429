"""Secrets that webhooks are signed with: `whsec_` and Base64, as Standard Webhooks has them."""

import binascii
import secrets
from base64 import b64decode, b64encode

PREFIX = "whsec_"
#: By the specification: how many bytes a secret may have, and how many a new one has.
MIN_BYTES, MAX_BYTES, NEW_BYTES = 24, 64, 32
#: The longest secret, in characters.
MAX_SECRET_LENGTH = len(PREFIX) + 4 * -(-MAX_BYTES // 3)

_FIX = f'Fix: echo "{PREFIX}$(openssl rand -base64 {NEW_BYTES})" makes one'


def new_secret() -> str:
    return PREFIX + b64encode(secrets.token_bytes(NEW_BYTES)).decode()


def check_webhook_secret(text: str) -> None:
    """Raises ValueError for what is no secret. The message never has it."""
    if not text.startswith(PREFIX):
        raise ValueError(f"must begin with {PREFIX}, as Standard Webhooks has it. {_FIX}")
    try:
        num_bytes = len(b64decode(text.removeprefix(PREFIX), validate=True))
    except (binascii.Error, ValueError):
        raise ValueError(f"must be Base64 after {PREFIX}. {_FIX}") from None
    if not MIN_BYTES <= num_bytes <= MAX_BYTES:
        allowed = f"{MIN_BYTES} to {MAX_BYTES} bytes"
        raise ValueError(f"must be the Base64 of {allowed} after {PREFIX}, got that of {num_bytes}. {_FIX}")
