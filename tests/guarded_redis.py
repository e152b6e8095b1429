"""A redis-server whose users are those of an ACL file."""

from pathlib import Path

from llama_herd.worker.embedded_redis import EmbeddedRedis

ROOT = "user root on >root ~* &* +@all"


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
