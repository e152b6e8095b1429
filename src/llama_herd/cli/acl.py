"""`herd acl`: users of Redis, each with the rights of its roles."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llama_herd.cli.terminal import harmless, show
from llama_herd.errors import BadInput

if TYPE_CHECKING:
    from llama_herd.tasks.security.acl import Role


Tenant = Annotated[
    list[str] | None, typer.Option(help="Tenant of the users; absent: HERD_TENANT. May be repeated.")
]
Model = Annotated[
    list[str] | None,
    typer.Option(help="Model whose queue they use; absent: HERD_MODEL_NAME. May be repeated."),
]
User = Annotated[
    list[str] | None,
    typer.Option(
        help="Write this user alone, NAME=ROLE or NAME=ROLE+ROLE, for all these tenants; may be "
        "repeated. Absent: <tenant>-<role> for each role and tenant, and one gatekeeper."
    ),
]
RedisVersion = Annotated[
    Literal["6", "7"],
    typer.Option(
        help="Server that reads the file: 6 for Redis 6.2, with wider rights; 7 for Redis 7 or Valkey."
    ),
]


def acl(
    folder: Annotated[Path, typer.Argument(help="Folder of users.acl and the passwords; created if absent.")],
    tenant: Tenant = None,
    model: Model = None,
    user: User = None,
    redis: RedisVersion = "7",
) -> None:
    """Write Redis users with no more rights than their roles need.

    Roles are producer, subscriber, worker, operator, gateway, and gatekeeper, who makes the gateway's keys.
    Start Redis with --aclfile FOLDER/users.acl, or let an administrator of your own run ACL LOAD. Other users
    in the file stay.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.tasks.protocol.message import queue_name
    from llama_herd.tasks.security.acl import Acl, Role
    from llama_herd.tasks.security.acl_folder import queues_of_users, write_users
    from llama_herd.tasks.security.rights import Dialect
    from llama_herd.tasks.settings import Settings

    found = read_settings(Settings)
    tenants = [Settings.read(tenant=name).tenant for name in tenant or [found.tenant]]
    models = model or [found.default_model]
    acls = [Acl(name, [queue_name(model, name) for model in models]) for name in tenants]
    if user:
        users = {name: Acl.rights_in(acls, *roles) for name, roles in map(_name_and_roles, user)}
    else:
        users = {role.user_in(acl.tenant): acl.rights(role) for acl in acls for role in Role}
    before = queues_of_users(folder)
    path = write_users(folder, users, Dialect(redis))
    after = queues_of_users(folder)
    for name in users:
        show(f"{name}: its password is in {folder / name}.password")
        if lost := before.get(name, frozenset()) - after[name]:
            note = f"{name} reaches {', '.join(sorted(lost))} no longer. Fix: name all models of its tenant"
            print(f"warning: {harmless(note)}", file=sys.stderr)
    version = redis if redis == "6" else f"{redis} or newer"
    show(f"redis-server --aclfile {shlex.quote(str(path))}  # Redis {version}")


def _name_and_roles(user: str) -> "tuple[str, list[Role]]":
    """A user's name and roles, from NAME=ROLE+ROLE. Raises BadInput."""
    from llama_herd.tasks.security.acl import Role

    name, _, roles = user.partition("=")
    try:
        return name, [Role(role) for role in roles.split("+")]
    except ValueError:
        raise BadInput(
            f"--user {user}: must be NAME=ROLE or NAME=ROLE+ROLE, of the roles {', '.join(Role)}"
        ) from None
