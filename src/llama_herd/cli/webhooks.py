"""`herd webhooks`: who is told of the ends of jobs, and what was not delivered."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_herd.cli.connection import run_in_redis, tenant_of
from llama_herd.cli.terminal import checked_text, harmless, say, show, table_console, utc_text
from llama_herd.errors import BadInput
from llama_herd.extras import need_extra

if TYPE_CHECKING:
    from llama_herd.cli.folding_table import FoldingTable
    from llama_herd.tasks.ledger.outbox import ListedWebhook

webhooks = typer.Typer(
    no_args_is_help=True, help="Requests by which a tenant is told of the ends of its jobs."
)

#: The fix where the user of Redis may not see or change who is told.
BE_ADMINISTRATOR = (
    "come as a Redis user of your own, since no role of herd acl may set, show and remove these: see "
    "docs/webhooks.md"
)

Tenant = Annotated[str | None, typer.Option(help="Whose; absent: HERD_TENANT.")]
SecretFile = Annotated[Path | None, typer.Option(help="File with the secret, whsec_...")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


Host = Annotated[list[str] | None, typer.Option(help="Further host that jobs may name. May be repeated.")]
Jobs = Annotated[
    bool,
    typer.Option("--jobs/--no-jobs", help="Tell of all jobs, or only of those that name an address."),
]
NewSecret = Annotated[
    bool,
    typer.Option("--new-secret", help="Make another secret. The one before signs beside it for a day."),
]
AtOnce = Annotated[bool, typer.Option("--at-once", help="The secret before signs no more: others know it.")]


@webhooks.command("set")
def configure_webhooks(
    url: Annotated[str, typer.Argument(help="Where to tell of ends, such as https://example.com/hook.")],
    tenant: Tenant = None,
    host: Host = None,
    jobs: Jobs = True,
    secret_file: SecretFile = None,
    new_secret: NewSecret = False,
    at_once: AtOnce = False,
) -> None:
    """Say where to tell of ends. A new secret is printed: nobody can see it again."""
    from llama_herd.tasks.webhooks import setup

    secret = None if secret_file is None else _secret(secret_file)
    overlap_s = 0 if at_once else setup.OVERLAP_S
    dialogue = setup.store_webhooks(
        tenant_of(tenant), url, host or [], jobs=jobs, secret=secret, renews=new_secret, overlap_s=overlap_s
    )
    made = run_in_redis(dialogue, BE_ADMINISTRATOR).secret
    show("the secret stays" if made is None else made)


@webhooks.command("show")
def show_webhooks(tenant: Tenant = None) -> None:
    """Show as JSON where a tenant is told of ends, without the secret."""
    from llama_herd.tasks.protocol.webhook import url_without_query
    from llama_herd.tasks.webhooks.setup import webhook_config_of

    config = run_in_redis(webhook_config_of(tenant_of(tenant)), BE_ADMINISTRATOR)
    secrets = ("secret", "old_secret")
    facts = {name: value for name, value in asdict(config).items() if name not in secrets}
    print(json.dumps(facts | {"url": url_without_query(config.url)}))


@webhooks.command("remove")
def stop_webhooks(tenant: Tenant = None) -> None:
    """Tell of nothing more, and forget what was not delivered."""
    from llama_herd.tasks.webhooks.setup import remove_webhooks

    num = run_in_redis(remove_webhooks(tenant_of(tenant)), BE_ADMINISTRATOR)
    print(f"removed; {num} that were not delivered are forgotten")


@webhooks.command("list")
def list_webhooks(
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most to show that wait, and dead.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List what was not delivered yet, and what was given up, and why.

    What is due first comes first.
    """
    from llama_herd.tasks.webhooks.setup import list_outbox

    found = run_in_redis(list_outbox(tenant_of(tenant), limit))
    if as_json:
        for one in found:
            print(json.dumps(_facts(one)))
    elif not found:
        print("everything is delivered")
    else:
        table_console().print(_table(found))


@webhooks.command("retry")
def retry_webhooks(
    name: Annotated[str, typer.Argument(help="Id of a dead webhook, or of its job.")] = "",
    tenant: Tenant = None,
    is_all: Annotated[bool, typer.Option("--all", help="All that are dead.")] = False,
) -> None:
    """Send dead webhooks again, at once and with all tries."""
    from llama_herd.tasks.webhooks import setup

    if bool(checked_text(name, "the id")) == is_all:
        raise BadInput("herd webhooks retry needs an ID or --all. Fix: give one of them")
    num = run_in_redis(setup.retry_all_webhooks(tenant_of(tenant))) if is_all else 1
    if not is_all:
        run_in_redis(setup.retry_webhook(tenant_of(tenant), name))
    print(f"due now: {num}")


@webhooks.command("listen")
def listen_for_webhooks(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of 127.0.0.1. 0: any free one.")] = 8080,
    tenant: Tenant = None,
    secret_file: SecretFile = None,
) -> None:
    """Receive webhooks at this machine, for development.

    It checks each signature, and prints a line for each.
    """
    need_extra("gateway", "herd webhooks listen")

    from llama_herd.tasks.webhooks.setup import webhook_config_of
    from llama_herd.tasks.webhooks.webhook_listener import WebhookListener

    secret = (
        _secret(secret_file) if secret_file else run_in_redis(webhook_config_of(tenant_of(tenant))).secret
    )
    try:
        listener = WebhookListener(port, secret, lambda line: show(harmless(line).replace("\n", " ")))
    except OSError:
        raise BadInput(f"cannot listen at 127.0.0.1:{port}. Fix: choose another --port") from None
    say(f"webhooks are received at {listener.url}")
    with listener:
        try:
            listener.serve_forever()
        except KeyboardInterrupt:
            return


def _facts(one: "ListedWebhook") -> dict[str, Any]:
    from llama_herd.tasks.protocol.webhook import url_without_query

    entry = one.entry
    facts = asdict(entry) | {"url": entry.url and url_without_query(entry.url)}
    facts["own_secret"] = facts.pop("secret") is not None
    return facts | {"is_dead": one.is_dead, "at_ms": one.at_ms}


def _table(found: "list[ListedWebhook]") -> "FoldingTable":
    from llama_herd.cli.folding_table import FIGURE, NAME, WHOLE, FoldingTable

    columns = {"webhook": WHOLE, "type": WHOLE, "is": WHOLE, "at": WHOLE, "tries": FIGURE, "error": NAME}

    def cells(one: "ListedWebhook") -> tuple[str, ...]:
        entry, state = one.entry, "dead" if one.is_dead else "waiting"
        return entry.message, entry.type, state, utc_text(one.at_ms), str(entry.tries), entry.error or ""

    return FoldingTable(columns, map(cells, found))


def _secret(path: Path) -> str:
    """The secret in a file. Raises BadInput."""
    from llama_herd.tasks.webhooks.setup import checked_secret

    try:
        return checked_secret(path.read_text("ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise BadInput(f"--secret-file {path}: cannot be read: {reason}") from None
