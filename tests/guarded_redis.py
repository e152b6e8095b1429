"""A redis-server whose users are those of an ACL file."""

import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from llama_herd.local.redis_server import EmbeddedRedis, find_server
from llama_herd.tasks.security import acl_folder
from llama_herd.tasks.security.rights import Dialect, Rights

ROOT = "user root on >root ~* &* +@all"


@cache
def newest_dialect() -> Dialect:
    """That of the redis-server at hand."""
    said = subprocess.run([find_server(), "--version"], check=True, capture_output=True, text=True).stdout
    version = re.search(r"v=(\d+)", said)
    assert version, said
    return Dialect.SELECTORS if int(version[1]) >= 7 else Dialect.FLAT


def write_users(folder: Path, users: Mapping[str, Rights], dialect: Dialect | None = None) -> Path:
    """As narrow as the redis-server at hand can be told."""
    return acl_folder.write_users(folder, users, dialect or newest_dialect())


class GuardedRedis(EmbeddedRedis):
    """Lets in the users of a folder that `write_users` wrote, and `root`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._users = folder
        path = folder / "users.acl"
        path.write_text(f"{path.read_text()}{ROOT}\n")

    @property
    def url(self) -> str:
        return self.url_of("root", "root")

    def url_of(self, user: str, password: str | None = None) -> str:
        """The address for a user; the password comes from the folder."""
        password = password or (self._users / f"{user}.password").read_text()
        return f"redis://{user}:{password}@127.0.0.1:{self.port}/0"

    def _command(self) -> list[str]:
        return [*super()._command(), "--aclfile", str(self._users / "users.acl")]
