"""The compose files as Compose takes them together, and what a command of it starts: by its documented rules.

Where Compose itself is at hand, `tests/test_compose.py` holds it against this.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

ROOT = Path(__file__).parent.parent
MAIN, GPU, SECURE = "docker-compose.yml", "docker-compose.gpu.yml", "docker-compose.secure.yml"

#: Lists that a later file replaces; others are joined.
REPLACED = ("command", "entrypoint", "test")


def merged(one: Any, two: Any, name: str = "") -> Any:
    """A value of a file, and that of a later one."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one | {key: merged(one.get(key), value, key) for key, value in two.items()}
    if isinstance(one, list) and isinstance(two, list) and name not in REPLACED:
        return [*one, *two]
    return two


def project(*files: str) -> dict[str, Any]:
    """What these files make together."""
    read: Iterable[Any] = (yaml.safe_load((ROOT / file).read_text()) for file in files)
    made: dict[str, Any] = reduce(merged, read)
    return made


def services_of(*profiles: str, files: Sequence[str] = (MAIN,)) -> set[str]:
    """The services that belong to a command with these profiles, and so those that `up` starts."""
    return {
        name
        for name, service in project(*files)["services"].items()
        if "profiles" not in service or "*" in profiles or {*profiles} & {*service["profiles"]}
    }


class ComposeCommand(NamedTuple):
    """A command line of `docker compose`."""

    line: str
    files: tuple[str, ...]
    profiles: tuple[str, ...]
    words: tuple[str, ...]  # the command and what follows

    @classmethod
    def of(cls, line: str) -> Self:
        words = shlex.split(line, comments=True)[2:]
        options: dict[str, list[str]] = {"-f": [], "--profile": []}
        while words and words[0] in options:
            options[words[0]].append(words[1])
            words = words[2:]
        return cls(line, tuple(options["-f"]) or (MAIN,), tuple(options["--profile"]), tuple(words))

    @property
    def services(self) -> set[str]:
        """Those that it is about: all of its profiles, unless it names some."""
        return services_of(*self.profiles, files=self.files)


#: A command line wherever it stands: between backticks, in a table, or before a remark.
_LINE = re.compile(r"docker compose (?:-|(?:up|down|run|logs|ps|build|exec|stop|start|kill)\b)[^`|)\n]*")


def documented() -> Iterator[ComposeCommand]:
    """Every command line in the documents, in the files for Compose and in the example of settings."""
    for pattern in ("docs/**/*.md", "*.md", "docker-compose*.yml", ".env.example"):
        for page in sorted(ROOT.glob(pattern)):
            for line in _LINE.findall(page.read_text()):
                yield ComposeCommand.of(line.split("   ")[0])
