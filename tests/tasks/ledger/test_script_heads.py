"""What the head of a script says is what the script reads, and what its calls give."""

import re
from functools import cache
from importlib import resources
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.ledger.script import Head, ListHead, Script, all_scripts, kept_scripts
from llama_herd.tasks.ledger.script_call import call

FILES = sorted(
    file.name.removesuffix(".lua")
    for file in (resources.files("llama_herd.tasks.ledger") / "lua").iterdir()
    if file.name.endswith(".lua")
)
each_file = pytest.mark.parametrize("name", FILES)
each_script = pytest.mark.parametrize("script", all_scripts(), ids=lambda script: script.name)


@cache
def code(name: str) -> str:
    """A file without its comments and its texts."""
    text = (resources.files("llama_herd.tasks.ledger") / "lua" / f"{name}.lua").read_text("utf-8")
    return re.sub(r"--.*|'(?:[^'\\]|\\.)*'", "", text)


def words(name: str) -> set[str]:
    """The names that a file reads, but not those behind a dot."""
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code(name)))


def bound(name: str) -> set[str]:
    """The names that a file binds anywhere: those of locals, of loops and of what functions take."""
    found = re.findall(r"(?:local|for|function \w*\(|local function) *([\w, .]+)", code(name))
    return {word for names in found for word in re.findall(r"\w+", names)}


def defined(name: str) -> set[str]:
    """The names that the outermost block of a file defines."""
    found = re.findall(r"^local (?:function (\w+)|([\w, ]+))", code(name), re.MULTILINE)
    return {word for function, names in found for word in re.findall(r"\w+", function or names)}


def names_of(head: Head) -> list[str]:
    """The names that the lines before a script give it."""
    lists = (*(one.name for one in head.lists), *head.more)
    return [*(name.removesuffix("#") for name in head.args), *lists, *(["key"] if head.keys else [])]


def everything(head: Head) -> dict[str, Any]:
    """What a call gives to a script: two entries of each list."""
    given: dict[str, Any] = {name.removesuffix("#"): f"a {name}" for name in (*head.keys, *head.args)}
    for one in head.lists:
        entry: Any = {field: f"a {field}" for field in one.fields} if len(one.fields) > 1 else "an entry"
        given[one.name] = {"field": "value"} if one.is_pairs else [entry, entry]
    return given


@each_file
def test_a_file_reads_keys_and_arguments_by_the_names_of_its_head(name: str) -> None:
    assert "ARGV" not in code(name)
    assert "KEYS" not in code(name) or name == "declare"  # which looks whether it has a key at all


@each_file
def test_a_file_needs_those_whose_names_it_reads_and_no_others(name: str) -> None:
    *files, own = Script(name).files
    assert own == name
    foreign = words(name) - bound(name) - {*names_of(Script(name).head)}
    scripts = {script.name for script in all_scripts()}
    owners = {one for one in FILES if one not in scripts and defined(one) & foreign}
    assert owners <= {*files}
    assert all(defined(one) & foreign for one in Script(name).head.needs)


@each_script
def test_a_script_reads_all_that_its_head_names_and_no_name_has_two_meanings(script: Script) -> None:
    head, names = script.head, names_of(script.head)
    fields = [*head.keys, *(field for one in head.lists for field in one.fields)]
    assert all(re.fullmatch(r"[a-z_]+", word) for word in (*names, *fields))
    assert len({*names, *head.keys}) == len(names) + len(head.keys)
    assert not {*names} & {word for file in script.files for word in defined(file)}
    assert {*names} <= words(script.name)
    all_code = "".join(map(code, script.files))
    read = set(re.findall(r"\.(\w+)", all_code))
    of_lists = {field for one in head.lists if len(one.fields) > 1 for field in one.fields}
    assert {*head.keys} | of_lists <= read
    set_here = set(re.findall(r"key\.(\w+)(?:, key\.\w+)* =", code(script.name)))
    assert set(re.findall(r"key\.(\w+)", code(script.name))) <= {*head.keys, *set_here, "ttl_s", "failed_s"}


@each_script
def test_a_call_gives_what_the_head_names(script: Script) -> None:
    given = everything(script.head)
    made = call(script.name, int, **given)
    assert len(made.command) == 3 + len(made.keys) + len(made.args)
    for name in given:
        with pytest.raises(TypeError, match=rf"{script.name}.* lacks {name}$"):
            call(script.name, int, **{other: given[other] for other in given if other != name})
    with pytest.raises(TypeError, match=rf"{script.name}.* knows no other$"):
        call(script.name, int, **given, other=1)


@pytest.mark.parametrize(
    ("script", "one"),
    [(script, one) for script in all_scripts() for one in script.head.lists if len(one.fields) > 1],
    ids=lambda one: one.name,
)
def test_an_entry_has_the_fields_that_the_head_names(script: Script, one: ListHead) -> None:
    given = everything(script.head)
    good, name = given[one.name][0], one.fields[0]
    for bad in ({**good, "other": 1}, {field: good[field] for field in good if field != name}):
        with pytest.raises(TypeError, match=rf"{script.name} with {one.name} (lacks {name}|knows no other)$"):
            call(script.name, int, **given | {one.name: [good, bad]})


@pytest.mark.redis
@each_script
def test_redis_takes_each_script(redis: Redis, script: Script) -> None:
    assert redis.script_load(script.source) == script.sha


@pytest.mark.redis
@pytest.mark.parametrize(
    ("script", "place"),
    [(script, place) for script in all_scripts() for place in range(len(script.head.lists))],
    ids=lambda one: getattr(one, "name", None),
)
def test_a_list_of_more_entries_than_came_is_refused_at_once(
    redis: Redis, script: Script, place: int
) -> None:
    """Whoever may run a script may say anything; a loop without an end would stop Redis for all."""
    made = call(script.name, int, **everything(script.head))
    for count in ("1e15", "-1", "nan", "inf", "", "2.0e0x"):
        args = [*made.args[:place], count, *made.args[place + 1 :]]
        with pytest.raises(ResponseError, match="other keys and arguments"):
            redis.eval(script.source, len(made.keys), *made.keys, *args)


def test_the_scripts_are_kept_for_those_who_may_not_load_them() -> None:
    names = {script.name for script in kept_scripts("producers")}
    assert names == {"submit", "submit_many", "cancel"}
    assert {one.head.kept for one in kept_scripts()} == {
        f" for {who}" for who in ("producers", "clients", "gateways")
    }
