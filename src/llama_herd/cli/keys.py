"""`herd keys`: who may come in at the gateway."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.connection import run_in_redis, tenant_of
from llama_herd.cli.job_options import parse_duration
from llama_herd.cli.terminal import harmless, say, show, utc_text
from llama_herd.errors import BadInput

if TYPE_CHECKING:
    from llama_herd.tasks.ledger.stored_api_keys import ApiKey

#: The fix where the user of Redis may not change keys.
BE_GATEKEEPER = (
    "come as the user gatekeeper, which herd acl makes: put it into HERD_REDIS_URL, as in "
    "redis://gatekeeper@host:6379/0, and FOLDER/gatekeeper.password into HERD_REDIS_PASSWORD_FILE"
)

keys = typer.Typer(no_args_is_help=True, help="Keys by which others come in at the gateway.")


Role = Annotated[
    str,
    typer.Option(
        help="subscriber: reads. producer: also submits and cancels. operator: also purges and pauses."
    ),
]
Expires = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="It opens nothing after this time, such as 12h or 30d."),
]


@keys.command("create")
def print_new_key(
    name: Annotated[str, typer.Argument(help="Whose key it is, such as billing-service.")],
    tenant: Annotated[str | None, typer.Option(help="Tenant of its jobs; absent: HERD_TENANT.")] = None,
    role: Role = "producer",
    max_priority: Annotated[int, typer.Option(help="Highest priority of its jobs, -10 to 10.")] = 10,
    expires: Expires = None,
) -> None:
    """Make a key and print it. It is stored as a hash: nobody can see it again."""
    from llama_herd.tasks.security.api_keys import KeyRole, create_key

    if role not in list(KeyRole):
        raise BadInput(f"--role {role}: must be one of {', '.join(KeyRole)}")
    expires_s = parse_duration(expires, "--expires")
    making = create_key(name, tenant_of(tenant), KeyRole(role), max_priority, expires_s)
    show(run_in_redis(making, BE_GATEKEEPER))


@keys.command("list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List all keys, without what would let anybody in."""
    from llama_herd.tasks.ledger.stored_api_keys import UnreadableKey, all_keys
    from llama_herd.tasks.protocol.priority import MAX_PRIORITY

    found = run_in_redis(all_keys(), BE_GATEKEEPER)
    if not any(found) and not as_json:
        print("there are no keys, so the gateway lets nobody in. Fix: herd keys create NAME")
    for fingerprint in found.unreadable:
        say(str(UnreadableKey.for_fingerprint(fingerprint).args[0]))
    for key in found.keys:
        if as_json:
            print(json.dumps({name: value for name, value in asdict(key).items() if name != "digest"}))
        else:
            since = utc_text(key.created_ms, "%Y-%m-%d")
            limit = f"  priority up to {key.max_priority}" if key.max_priority < MAX_PRIORITY else ""
            end = f"  {_end_text(key)}" if key.expires_ms is not None else ""
            print(
                harmless(f"{key.fingerprint}  {since}  {key.role:<10}  {key.tenant}  {key.name}{limit}{end}")
            )


def _end_text(key: "ApiKey") -> str:
    """When a key that expires does, or did."""
    from time import time

    verb = "expired" if key.has_expired(int(1000 * time())) else "expires"
    return f"{verb} {utc_text(key.expires_ms or 0, '%Y-%m-%d %H:%M')} UTC"


@keys.command("revoke")
def forget_key(name: Annotated[str, typer.Argument(help="Name or fingerprint of the key.")]) -> None:
    """Forget a key. It opens nothing from now on; streams under way go on."""
    from llama_herd.tasks.security.api_keys import revoke_key

    show(f"revoked {run_in_redis(revoke_key(name), BE_GATEKEEPER)}")
