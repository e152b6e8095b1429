"""Scripts that Redis runs: their texts in `lua/`, and what each says of itself at its head.

The comments that a file begins with are its head. These of their lines are read here:

    -- needs: clock, end                the files whose functions it uses
    -- keys: job, events                keys of which it takes one each: `key.job`, `key.events` in the script
    -- args: owner, lease_ms#           arguments, by their names in the script; # marks a number
    -- list events: keys job; args id   a table of so many entries: `events[1].job`, `events[1].id`
    -- pairs fields:                    fields and their values, one behind the other, as HSET takes them
    -- more records:                    a table of further keys, none or some; it may ask for them
    -- also lines:                      the same, without a table: it touches those whose names it finds
    -- builds keys:                     touches keys whose names it finds, and that its call does not declare
    -- kept: for gateways               these may run but not load it: workers keep it loaded

What stands in parentheses is for readers, and so is all behind `pairs`, `more`, `also` and `builds keys`. A
line goes on in lines that are indented. The entries of a list with a single field are the values themselves.
Without lists and pairs KEYS and ARGV are those that the head names, in its order. No script reads them.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Self

#: Tells Dragonfly that a script touches keys which its call does not declare. For Redis it is a comment.
UNDECLARED = "--!df flags=allow-undeclared-keys\n"
_FOLDER = resources.files("llama_herd.tasks.ledger") / "lua"
_SECTION = re.compile(
    r"-- (needs|keys|args|list \w+|pairs \w+|(?:more|also) \w+|builds keys|kept):(.*(?:\n--  .*)*)"
)
#: Reads how many entries a list has, as far as the call has so many keys and arguments left.
_COUNT = """\
  local function count(place, num_keys, num_args)
    local num = tonumber(ARGV[place])
    if not (num and num >= 0 and k + num * num_keys <= #KEYS and a + num * num_args <= #ARGV) then
      error('the call has other keys and arguments than the head of its script names')
    end
    return num
  end"""


@dataclass(frozen=True)
class ListHead:
    """A list of entries that a script takes: the keys and the arguments of each, in order.

    is_pairs: of fields and their values, each of which is an entry.
    """

    name: str
    keys: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    is_pairs: bool = False

    @classmethod
    def parse(cls, kind: str, name: str, text: str) -> Self:
        if kind == "pairs":
            return cls(name, args=("part",), is_pairs=True)
        parts = dict(part.split(maxsplit=1) for part in _plain(text).split(";"))
        return cls(name, _names(parts.get("keys", "")), _names(parts.get("args", "")))

    @cached_property
    def fields(self) -> tuple[str, ...]:
        return tuple(name.removesuffix("#") for name in (*self.keys, *self.args))


@dataclass(frozen=True)
class Head:
    """What a script says of its call. A # behind a name of an argument marks a number.

    more, also: names of further keys at the end, with a table of them and without. kept: for whom.
    """

    needs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    lists: tuple[ListHead, ...] = ()
    more: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    builds_keys: bool = False
    kept: str = ""

    @classmethod
    def parse(cls, source: str) -> Self:
        comments = re.match(r"(?:--.*\n)*", source)
        sections: dict[str, str] = dict(_SECTION.findall(comments[0] if comments else ""))
        words = [(*section.split(), text) for section, text in sections.items() if " " in section]
        needs, keys, args = (_names(sections.get(kind, "")) for kind in ("needs", "keys", "args"))
        return cls(
            needs,
            keys,
            args,
            tuple(ListHead.parse(*section) for section in words if section[0] in ("list", "pairs")),
            tuple(name for kind, name, _ in words if kind == "more"),
            tuple(name for kind, name, _ in words if kind == "also"),
            builds_keys="builds keys" in sections,
            kept=sections.get("kept", ""),
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """What a call must give; `more` it may."""
        words = (*self.keys, *self.args, *(one.name for one in self.lists))
        return frozenset(word.removesuffix("#") for word in words)

    @property
    def prelude(self) -> str:
        """The Lua that gives a script's keys and arguments their names."""
        first = 1 + len(self.lists)
        tables = (*(one.name for one in self.lists), *self.more)
        lines = [f"local key = {_table(self.keys, 'KEYS')}"] if self.keys else []
        if self.args:
            values = ", ".join(_value(name, f"ARGV[{n}]") for n, name in enumerate(self.args, first))
            lines.append(f"local {', '.join(self.args)} = {values}".replace("#", ""))
        if tables:
            lines.append(f"local {', '.join(tables)} = {', '.join(['{}'] * len(tables))}")
            lines += ["do", "  local KEYS, ARGV, tonumber = KEYS, ARGV, tonumber -- globals are slower"]
            lines += [f"  local k, a = {len(self.keys)}, {len(self.lists) + len(self.args)}"]
            lines += [_COUNT] if self.lists else []
            for place, one in enumerate(self.lists, 1):
                lines += _filled(place, one)
            lines += (f"  for n = k + 1, #KEYS do {name}[n - k] = KEYS[n] end" for name in self.more)
            lines.append("end")
        return "\n".join(lines)


def _plain(text: str) -> str:
    """A section without what is for readers."""
    return re.sub(r"\([^()]*\)|\n--", "", text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in _plain(text).split(",") if name.strip())


def _value(name: str, place: str) -> str:
    return f"tonumber({place})" if name.endswith("#") else place


def _table(names: tuple[str, ...], source: str) -> str:
    return f"{{{', '.join(f'{name} = {source}[{n}]' for n, name in enumerate(names, 1))}}}"


def _filled(place: int, one: ListHead) -> Iterator[str]:
    """The loop that reads a list, behind the counts that come first."""
    keys = [(name, f"KEYS[k + {n}]") for n, name in enumerate(one.keys, 1)]
    args = [(name, _value(name, f"ARGV[a + {n}]")) for n, name in enumerate(one.args, 1)]
    fields = [f"{name.removesuffix('#')} = {value}" for name, value in (*keys, *args)]
    entry = f"{{{', '.join(fields)}}}" if len(fields) > 1 else (*keys, *args)[0][1]
    yield f"  for place = 1, count({place}, {len(keys)}, {len(args)}) do"
    yield f"    {one.name}[place] = {entry}"
    yield f"    k, a = k + {len(keys)}, a + {len(args)}"
    yield "  end"


@cache
def _text_of(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text("utf-8")


@dataclass(frozen=True)
class Script:
    """A Lua script, by the name of its file in `lua/`."""

    name: str

    @cached_property
    def head(self) -> Head:
        return Head.parse(_text_of(self.name))

    @property
    def files(self) -> tuple[str, ...]:
        """The files that its text is made of: each once, behind those that it needs."""
        needed = (file for name in self.head.needs for file in Script(name).files)
        return (*dict.fromkeys(needed), self.name)

    @cached_property
    def source(self) -> str:
        return UNDECLARED + self.plain_source if self.head.builds_keys else self.plain_source

    @property
    def plain_source(self) -> str:
        *shared, own = map(_text_of, self.files)
        return "\n".join((*shared, self.head.prelude, own))

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    @property
    def commands(self) -> frozenset[str]:
        """The Redis commands that the script calls. A user needs the right to each of them."""
        named = re.findall(r"redis\.p?call\('(MEMORY', 'USAGE|[A-Z]+)'", self.source)
        return frozenset(name.replace("', '", "|") for name in named)


@cache
def all_scripts() -> tuple[Script, ...]:
    """All scripts, by their names: the files that no other one needs."""
    files = {
        Script(file.name.removesuffix(".lua")) for file in _FOLDER.iterdir() if file.name.endswith(".lua")
    }
    shared = {name for file in files for name in file.head.needs}
    return tuple(sorted((file for file in files if file.name not in shared), key=lambda file: file.name))


def kept_scripts(whose: str = "") -> tuple[Script, ...]:
    """Those that workers keep loaded for producers, clients or gateways, or for all of these.

    Their roles may run but not load any.
    """
    return tuple(script for script in all_scripts() if script.head.kept and whose in script.head.kept)
