"""Every public class and function names the argument that it cannot take. The clients have their own test.

What is public is read from the code: a new name is walked, unless it stands in a list below, with the reason.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel, ValidationError

import llama_herd
import llama_herd.testing
from llama_herd.errors import BadInput, InvalidJob
from llama_herd.tasks.client.batch.batch_row import BatchRow
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.embedding import Embeddings
from llama_herd.tasks.client.herds import Herds
from llama_herd.tasks.links import route_links
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings
from llama_herd.testing import Answer, AskedJob, FakeHerd, Script
from tests.odd_arguments import ODD, complain, is_told

#: Walked with a Redis, by tests of their own: tests/tasks/client/test_arguments.py.
CLIENTS = {"AsyncClient", "Client"}
#: Made by us alone, and read by callers; and `Call`, which is looked at as a part of an Answer.
MADE_BY_US = {
    *("AskedJob", "BatchItem", "Call", "Embeddings", "JobStatus", "Place", "QueueStatus", "Rank", "Status"),
    "SubmitOutcome",
}
#: No code of ours runs when one is made: an enumeration, a type of mappings, a union of types.
TYPES = {"ErrorCode", "Event", "SamplingFields"}
#: Called by us alone: by a worker, by pydantic.
INNER = {"ends_by", "settings_customise_sources", "queue_of"}
#: Of these methods the test of clients calls those of an instance.
WITH_REDIS = {"Herds": {"submit", "stream", "result", "cancel", "purge", "job", "status"}}
#: Those that start something, or take nothing.
STARTING = {"start", "close", "reset"}

PUBLIC: dict[str, Any] = {
    name: getattr(module, name)
    for module in (llama_herd, llama_herd.testing)
    for name in module.__all__
    if not (inspect.isclass(getattr(module, name)) and issubclass(getattr(module, name), Exception))
} | {"route_links": route_links}
WALKED = sorted(PUBLIC.keys() - CLIENTS - MADE_BY_US - TYPES)

ASKED = AskedJob("id", "t", "m", GenerationJob(prompt="a"))
#: On what a method is called, and what a call needs beside the argument that is odd.
ITSELF: dict[str, Callable[[], Any]] = {
    "Answer": Answer,
    "FakeHerd": FakeHerd,
    "Herds": partial(Herds, {}, {}),
    "Result": partial(Result.of, "a"),
    "Script": Script,
}
GIVEN: dict[str, dict[str, Any]] = {
    "BatchRow": {"index": 0},
    "Herds": {"clients": {}, "models": {}},
    "Answer.calling": {"name": "a"},
    "Answer.failing": {"code": "model_error"},
    "EmbeddingJob.parse": {"data": {"texts": ["a"]}, "settings": Settings()},
    "GenerationJob.parse": {"data": {"prompt": "a"}, "settings": Settings()},
    "RankingJob.parse": {"data": {"query": "a", "documents": ["a"]}, "settings": Settings()},
    "Script.load": {"path": "none.toml"},
    "Script.reply_to": {"asked": ASKED},
}


@dataclass
class Called:
    """One call with one odd argument: what of ours is called, and by which name the argument goes."""

    name: str
    call: Callable[..., Any]
    argument: str
    odd: object
    args: list[Any] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> None:
        self.call(*self.args, **self.given)


def functions(name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """What can be called of a public name: itself, and its public methods that are ours."""
    subject = PUBLIC[name]
    yield name, subject
    if not inspect.isclass(subject):
        return
    for method in sorted(one for one in dir(subject) if not one.startswith("_")):
        found = inspect.getattr_static(subject, method)
        is_ours = str(getattr(getattr(found, "__func__", found), "__module__", "")).startswith("llama_herd")
        is_left_out = method in {*INNER, *STARTING} or method in WITH_REDIS.get(name, ())
        if is_left_out or not is_ours or not inspect.isroutine(getattr(subject, method)):
            continue
        takes = [*inspect.signature(getattr(subject, method)).parameters]
        if isinstance(found, classmethod | staticmethod):
            yield f"{name}.{method}", getattr(subject, method)
        elif takes != ["self"]:
            yield f"{name}.{method}", getattr(ITSELF[name](), method)


def calls(name: str) -> Iterator[Called]:
    """Each function of a public name with each of its arguments as each odd value."""
    for called, call in functions(name):
        parameters = inspect.signature(call).parameters.values()
        kinds = {one.name: one.kind.description for one in parameters}
        if inspect.isclass(call) and issubclass(call, BaseModel):
            kinds = dict.fromkeys(call.model_fields, "keyword-only")
        for argument, kind in kinds.items():
            if kind == "variadic keyword":
                continue
            for odd in ODD:
                given = {**GIVEN.get(called, {}), argument: odd}
                args: list[Any] = (
                    [given.pop(argument)] if kind in ("variadic positional", "positional-only") else []
                )
                yield Called(called, call, argument, odd, args, given)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names_it(called: Called, error: Exception) -> bool:
    """Whether the error says what is wrong: the argument, a field of it, or a file by its path."""
    if isinstance(error, ValidationError):  # pydantic names each field, also those that are missing
        return inspect.isclass(called.call) or called.argument in str(error)
    is_no_file = isinstance(error, BadInput) and "cannot be read: [Errno" in str(error)
    is_field = isinstance(error, InvalidJob) or (called.odd == {"a": 1} and "argument 'a'" in str(error))
    return is_no_file or is_field or is_told(called.argument, error)


@pytest.mark.parametrize("name", WALKED)
def test_a_wrong_argument_is_named(name: str) -> None:
    wrong = []
    for called in calls(name):
        try:
            called()
        except Exception as error:
            if not names_it(called, error):
                wrong.append(f"{called.name}: {complain(called.argument, called.odd, error)}")
    assert wrong == []


def test_each_name_that_is_left_out_is_public() -> None:
    assert PUBLIC.keys() >= {*CLIENTS, *MADE_BY_US, *TYPES}
    kept = {method for name in WALKED if inspect.isclass(PUBLIC[name]) for method in dir(PUBLIC[name])}
    assert {*kept, *dir(PUBLIC["Status"])} >= INNER


END = Result.of("a")
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "app": (route_links, (None, "shop", Celery)),
    "events": (Result.from_events, (None, 7, "text", {"a": 1}, [7], [END, None], END)),
    "results": (Embeddings.from_results, (None, 7, [None], END)),
    "kind": (Result.of("a").parsed, (None, "text", dict, END)),
    "index": (BatchRow, (None, "0", 0.0, True, -1, 1 << 70)),
    "failure": (partial(BatchRow, 0, {}), ("text", ValueError("x"), {"code": "x"})),
    "joined": (lambda rows: BatchRow(0, {}, joined=rows), (None, 7, [7], ["text"], BatchRow(0))),
    "settings": (partial(GenerationJob.parse, {"prompt": "a"}), (None, {}, "text", Settings)),
    "clients": (lambda given: Herds(given, {}), (None, [], {"a": "redis://"}, {"": None}, {1: None})),
    "models": (lambda given: Herds({}, given), (None, [], {"m": None}, {"m": []}, {"m": "a"})),
    "default": (lambda given: Herds({}, {}, default=given), (7, [], "a", "")),
    "path": (Script.load, (None, 7, b"a.toml", "a\0.toml", "a\0.py", "x" * 9000)),
    "to": (lambda given: Script().answer("a", to=given), (7, b"a", [], "(", "a{99999999999}")),
    "model": (lambda given: Script().answer("a", model=given), (7, "", "a b", [])),
    "replies": (lambda given: FakeHerd().answer(given), (None, 7, b"a", {})),
    "calls": (lambda given: Answer(calls=given), (None, 7, "a", [("a", {})], (Answer(),))),
    "tokens_per_s": (lambda given: Answer(tokens_per_s=given), (None, "7", True, 1e300, float("nan"))),
    "dies_after": (lambda given: Answer(dies_after=given), ("7", 0.5, -1)),
    "text": (Answer.of, (object(), b"a", "\udcff", {"a": {1}})),
    "fields": (Answer.from_dict, (None, 7, "a", [])),
    "model names": (FakeHerd, (None, "tales", b"tales", [], [None], ["a b"])),
    "redis_url": (lambda given: FakeHerd(redis_url=given), (None, 7, "nan", "http://h")),
    "slotz": (lambda given: FakeHerd(slotz=given), (1,)),
    "asked": (Script().reply_to, (None, "a", ASKED.job)),
    "field": (Settings.variables, (None, 7, "none", [])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_and_not_kept_for_later(name: str) -> None:
    call, odd_ones = REFUSED[name]
    for odd in odd_ones:
        with pytest.raises(BadInput, match=name.partition(" ")[0]):
            call(odd)


def test_what_a_function_of_a_script_makes_is_an_answer_or_a_text() -> None:
    script = Script()
    script.answer(lambda asked: 7)  # type: ignore[arg-type,return-value]
    with pytest.raises(llama_herd.GenerationError, match="raised BadInput"):
        script.reply_to(ASKED)
    assert [str(one) for one in script.problems] == ["the answer: must be an Answer, or its text, got int"]


@pytest.mark.parametrize(
    ("code", "words"),
    [("x = (", "raised SyntaxError"), ("a = 1\n1 / 0", "raised ZeroDivisionError in line 2")],
)
def test_a_script_that_raises_is_told_with_its_line(code: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(code)
    with pytest.raises(BadInput, match=words):
        Script.load("a.py")
    for answers in ("answers = 7", "answers = [7]"):
        (tmp_path / "a.toml").write_text(answers)
        with pytest.raises(BadInput, match="must be tables"):
            Script.load(Path("a.toml"))


def test_what_is_right_in_another_way_is_taken() -> None:
    with Client("redis://127.0.0.1:1") as client:
        assert Herds({"a": client}, {"m": "a"}, default="a").find("a@1") == (client, "1")
    assert BatchRow(True + 1).index == 2
    job = EmbeddingJob(texts=("a",))
    assert BatchRow(0, job, joined=[BatchRow(0, job), None]).name == "0:1"
