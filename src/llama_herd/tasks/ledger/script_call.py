"""Calls of scripts, by the names in their heads. Only here are their keys and arguments put in order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

from llama_herd.tasks.ledger.redis_call import Argument, RedisCall
from llama_herd.tasks.ledger.script import ListHead, Script

T = TypeVar("T")
#: An entry of a list: its fields by name; of a list with a single field the value itself.
Entry = Mapping[str, Argument] | Argument
#: What a call gives for a name: a key or an argument, the entries of a list, pairs, or further keys. None is
#: sent as an empty text.
Given = Argument | None | Sequence[Entry] | Mapping[str, Argument]
#: By its name: its text is read once.
_script = cache(Script)


def call(name: str, parse: Callable[[Any], T], /, **given: Given) -> RedisCall[T]:
    """Call the script of this name with all that its head names. parse: of its reply.

    Raises TypeError for a name that is missing, or that the head does not know.
    """
    script = _script(name)
    head = script.head
    values: dict[str, Any] = given
    more = [key for name in (*head.more, *head.also) for key in values.pop(name, ())]
    if given.keys() != head.names:
        raise TypeError(_complaint(script.name, given.keys(), head.names))
    keys: list[str] = [values[name] for name in head.keys]
    fixed = ("" if (value := values[name.removesuffix("#")]) is None else value for name in head.args)
    entries: list[Sequence[Any]] = [
        list(chain.from_iterable(values[one.name].items())) if one.is_pairs else values[one.name]
        for one in head.lists
    ]
    args: list[Argument] = [*map(len, entries), *fixed]
    for one, its_entries in zip(head.lists, entries, strict=True):
        _add_entries(script, one, its_entries, keys, args)
    return RedisCall(script, [*keys, *more], args, parse)


def _add_entries(
    script: Script, one: ListHead, entries: Sequence[Any], keys: list[str], args: list[Argument]
) -> None:
    if len(one.fields) == 1:
        (keys if one.keys else args).extend(entries)
        return
    try:
        if not set(map(len, entries)) <= {len(one.fields)}:
            raise KeyError
        keys += _picked(one.fields[: len(one.keys)], entries)
        args += _picked(one.fields[len(one.keys) :], entries)
    except KeyError:
        wrong = next(entry for entry in entries if entry.keys() != set(one.fields))
        raise TypeError(_complaint(f"{script.name} with {one.name}", wrong, one.fields)) from None


def _picked(names: Sequence[str], entries: Sequence[Any]) -> Iterable[Any]:
    """These fields of all entries, one entry behind the other. An event of each row of a step passes here."""
    if not names:
        return ()
    found = map(itemgetter(*names), entries)
    return found if len(names) == 1 else chain.from_iterable(found)


def _complaint(what: str, given: Iterable[str], wanted: Iterable[str]) -> str:
    lacks = {"lacks": set(wanted) - set(given), "knows no": set(given) - set(wanted)}
    parts = (f"{verb} {', '.join(sorted(names))}" for verb, names in lacks.items() if names)
    return f"the call of {what} {' and '.join(parts)}"
