"""Scripts that Redis runs: their texts in `lua/`, and the commands that they call."""

import hashlib
import re
from functools import cached_property
from importlib import resources

#: Tells Dragonfly that a script touches keys which its call does not declare. For Redis it is a comment.
UNDECLARED = "--!df flags=allow-undeclared-keys\n"


class Script:
    """A Lua script: its file in `lua/`, after the files that it shares with other scripts.

    builds_keys: it touches keys whose names it finds in what it reads, and which its call does not declare.
    """

    def __init__(self, name: str, *parts: str, builds_keys: bool = False) -> None:
        self.files = (*parts, name)
        self.builds_keys = builds_keys

    @cached_property
    def source(self) -> str:
        return UNDECLARED + self.plain_source if self.builds_keys else self.plain_source

    @property
    def plain_source(self) -> str:
        folder = resources.files("llama_herd.tasks.ledger") / "lua"
        return "\n".join((folder / f"{name}.lua").read_text("utf-8") for name in self.files)

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    @property
    def commands(self) -> frozenset[str]:
        """The Redis commands that the script calls. A user needs the right to each of them."""
        return commands_of(self.source)


def commands_of(source: str) -> frozenset[str]:
    """The Redis commands that a script's text calls."""
    return frozenset(re.findall(r"redis\.p?call\('([A-Z]+)'", source))
