"""The page of the Python client names all that the package exports; and every link leads somewhere."""

import re
import tomllib
from collections.abc import Iterable
from importlib import import_module
from inspect import get_annotations
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import typer
from pydantic import BaseModel

import llama_herd
from llama_herd.cli.app import EXIT_BAD_INPUT, app
from llama_herd.model.parsers.formats import REASONING_FORMATS, TOOL_FORMATS
from llama_herd.tasks.ledger.batch_records import BatchState
from llama_herd.tasks.protocol.worker_status import WorkerState
from llama_herd.tasks.security.acl import Role
from llama_herd.tasks.security.api_keys import KeyRole
from llama_herd.worker import process

ROOT = Path(__file__).parent.parent
API = ROOT / "docs" / "api.md"
NAMES = re.findall(r"^::: (\S+)$", API.read_text(), re.M)
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def found(name: str) -> object:
    """A module, or a name of one."""
    home, _, last = name.rpartition(".")
    own = getattr(import_module(home), last, None)
    return import_module(name) if own is None else own


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_names_is_there(name: str) -> None:
    assert getattr(found(name), "__doc__", None)


def test_every_exported_name_is_on_the_page() -> None:
    things = [found(name) for name in NAMES]
    homes = [thing for thing in things if isinstance(thing, ModuleType)]
    missing = [
        name
        for name in llama_herd.__all__
        if (own := getattr(llama_herd, name)) not in things
        and not any(getattr(home, name, None) is own for home in homes)
    ]
    assert missing == []


@pytest.mark.parametrize("client", [llama_herd.Client, llama_herd.AsyncClient])
def test_the_page_tells_what_each_method_of_a_client_is_for(client: type) -> None:
    rows = re.findall(r"^\| (`.+?`) \|", API.read_text(), re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    methods = [name for name in dir(client) if name[0] != "_" and callable(getattr(client, name))]
    assert sorted(named) == methods


@pytest.mark.parametrize("name", NAMES)
def test_an_attribute_that_is_no_field_of_a_model_says_so(name: str) -> None:
    """Else what fills the page takes it for a field without a type, and fails."""
    thing: Any = found(name)
    kinds = vars(thing).values() if isinstance(thing, ModuleType) else [thing]
    models: list[type[BaseModel]] = [
        kind for kind in kinds if isinstance(kind, type) and BaseModel in kind.__mro__[1:]
    ]
    assert [
        f"{model.__name__}.{own}"
        for model in models
        for own in vars(model).keys() & model.__class_vars__ - get_annotations(model).keys()
    ] == []


def anchors(page: Path) -> set[str]:
    """What a link may name after #: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for name, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        goal = page.parent / name if name else page
        assert goal.is_file(), name  # a folder is no page of the site
        assert not anchor or anchor in anchors(goal), f"{name}#{anchor}"


HERD: Any = typer.main.get_command(app)
#: Lists of the code, and the pages whose tables have a row for each name, at its beginning.
LISTS: dict[str, tuple[str, Iterable[object]]] = {
    "states of workers": ("security", get_args(WorkerState)),
    "roles of users of Redis": ("security", Role),
    "roles of keys": ("gateway", KeyRole),
    "extras": ("decisions/dependencies", PROJECT["optional-dependencies"]),
    "commands": ("commands", HERD.commands),
    "commands of webhooks": ("webhooks", HERD.commands["webhooks"].commands),
    "states of batches": ("batches", get_args(BatchState)),
    "formats of calls": ("tools", TOOL_FORMATS),
    "formats of reasoning": ("tools", REASONING_FORMATS),
}


@pytest.mark.parametrize("name", LISTS)
def test_each_name_of_a_list_has_a_row(name: str) -> None:
    page, names = LISTS[name]
    cells = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / f"{page}.md").read_text(), re.M)
    told = {word for cell in cells for word in re.split(r"[`, ]+", cell)}
    assert [str(one) for one in names if str(one) not in told] == []


def test_every_line_of_a_worker_on_the_page_of_logs_is_one_that_the_code_writes() -> None:
    rows = re.findall(r"^\| (`\w+ .+?`) \|", (ROOT / "docs" / "logs.md").read_text(), re.M)
    events = [event for row in rows for event in re.findall(r"`(.+?)`", row)]
    code = "".join(path.read_text() for path in (ROOT / "src").glob("**/*.py"))
    assert events
    assert [event for event in events if f'"{event}"' not in code] == []


def test_the_page_of_alarms_tells_every_exit_code() -> None:
    told = re.findall(r"^\|[^|]*\| (\d[\d, ]*) \|", (ROOT / "docs" / "operate.md").read_text(), re.M)
    codes = {code for name, code in vars(process).items() if name.startswith("EXIT_")} | {EXIT_BAD_INPUT}
    assert {int(code) for row in told for code in row.split(", ")} == codes


#: A command in a line of code, or between backticks.
COMMAND = re.compile(r"`(herd [^`]+)`|^ {4}(?:\$ )?(?:\w+=\S+ )*(?:\S*bin/)?(herd [a-z].*)$", re.M)


def unknown_parts(line: str) -> list[str]:
    """What of a line is no command of `herd`, or no option of that command."""
    command, unknown = HERD, list[str]()
    for word in re.split(r"\s#|[|;>&{]", line.replace("\n", " "))[0].split()[1:]:
        word = re.split(r"[=,.'\"]", word)[0]
        inner = getattr(command, "commands", None)
        options = {
            "--help",
            *(one for param in command.params for one in (*param.opts, *param.secondary_opts)),
        }
        if word.startswith("-"):
            unknown += [] if word in options else [word]
        elif inner is not None:
            unknown += [] if word in inner else [word]
            command = inner.get(word, command)
    return unknown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_there_with_its_options(page: Path) -> None:
    lines = [one or other for one, other in COMMAND.findall(page.read_text())]
    assert {line: found for line in lines if (found := unknown_parts(line))} == {}


def test_the_page_of_decisions_lists_each_with_its_status() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| (.+) \|$", (folder / "README.md").read_text(), re.M)
    decisions = [path for path in sorted(folder.glob("*.md")) if path.name != "README.md"]
    heads = [re.match(r"# (.+)\n\n\*\*Status\.\*\* (.+)\n", path.read_text()) for path in decisions]
    assert listed == [
        (head[1], path.name, head[2]) for head, path in zip(heads, decisions, strict=True) if head
    ]
