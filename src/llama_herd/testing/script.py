"""Script: which job gets which answer, and which jobs have asked."""

import os
import re
import runpy
import threading
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple, Self

from llama_herd.error_code import ErrorCode
from llama_herd.errors import BadInput, GenerationError
from llama_herd.tasks.client.arguments import MODEL, is_model
from llama_herd.tasks.protocol.given import checked_kind, refusal
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.settings import check_path, shortened
from llama_herd.testing.answer import Answer


@dataclass(frozen=True)
class AskedJob:
    """A job as a worker has asked for its answer."""

    id: str
    tenant: str
    model: str
    job: GenerationJob

    @property
    def text(self) -> str:
        """The prompt, or the last message of a chat; empty for ids."""
        if self.job.messages is None:
            return self.job.prompt or ""
        return "\n".join(self.job.messages[-1].texts)


#: What a job is answered: an answer, its text, or a function that makes one.
Reply = str | Answer | Callable[[AskedJob], str | Answer]
_REPLIES = "an Answer, its text, or a function that makes one"
#: Which jobs are meant: those whose `text` an expression is found in, or that a function picks. None: all.
Condition = str | re.Pattern[str] | Callable[[AskedJob], bool] | None


class Rule(NamedTuple):
    """A row of the script: replies that jobs get in turn, the last one also those that come later."""

    replies: tuple[Reply, ...]
    to: Condition
    model: str | None
    turns: dict[tuple[str, str], int]  # of jobs with another reply than the last: each attempt gets it

    def fits(self, asked: AskedJob) -> bool:
        if self.model not in (None, asked.model):
            return False
        if callable(self.to):
            return self.to(asked)
        return self.to is None or re.search(self.to, asked.text) is not None

    def reply_to(self, asked: AskedJob) -> Reply:
        job, turn = (asked.tenant, asked.id), len(self.turns)
        if turn < len(self.replies) - 1:
            self.turns.setdefault(job, turn)
        return self.replies[self.turns.get(job, len(self.replies) - 1)]


@dataclass
class Script:
    """Rules, of which the last one that fits a job counts. Any thread may call.

        script = Script()
        script.answer("I do not know.")
        script.answer("Paris.", to="capital of France")
        script.answer(Answer.failing("model_error"), "Fine now.", model="llama-3")  # the first, then others

    It keeps the jobs that have asked, each once: all of them in `jobs`, those without an answer in
    `unanswered`. What functions of the script have raised is in `problems`.
    """

    unanswered: list[AskedJob] = field(default_factory=list, init=False)
    problems: list[Exception] = field(default_factory=list, init=False)
    _asked: dict[tuple[str, str], AskedJob] = field(default_factory=dict, init=False)
    _rules: list[Rule] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def answer(self, *replies: Reply, to: Condition = None, model: str | None = None) -> None:
        """Answer the jobs that are meant. Without a reply each gets what it asks for: see `Answer`.

        Raises BadInput, as where `to` is no expression.
        """
        for reply in replies:
            if not isinstance(reply, str | Answer) and not callable(reply):
                raise refusal("replies", reply, _REPLIES)
        if model is not None and not is_model(model):
            raise BadInput(f"model: must be {MODEL}, got {shortened(model)}")
        if isinstance(to, str):
            try:
                to = re.compile(to)
            except (re.error, OverflowError, RecursionError) as error:
                raise BadInput(f"to={shortened(to)} is no regular expression: {error}") from None
        elif not (to is None or isinstance(to, re.Pattern) or callable(to)):
            raise refusal("to", to, "an expression, or a function of the job that was asked")
        with self._lock:
            self._rules.append(Rule(replies or (Answer(),), to, model, {}))

    @property
    def jobs(self) -> list[AskedJob]:
        with self._lock:
            return list(self._asked.values())

    def reply_to(self, asked: AskedJob) -> Answer:
        """The answer for a job, which is kept. Raises GenerationError if there is none.

        Raises BadInput for what was not asked.
        """
        checked_kind("asked", asked, AskedJob, "an AskedJob")
        with self._lock:
            self._asked.setdefault((asked.tenant, asked.id), asked)
        try:
            return self.answer_for(asked)
        except GenerationError as error:
            if isinstance(error.__cause__, Exception):
                self.problems.append(error.__cause__)
            else:
                self.unanswered.append(asked)
            raise

    def answer_for(self, asked: AskedJob) -> Answer:
        """The answer for a job, which is not kept. Raises GenerationError; no message quotes the prompt.

        Raises BadInput for what was not asked.
        """
        checked_kind("asked", asked, AskedJob, "an AskedJob")
        with self._lock:
            rules = self._rules[::-1]
        try:
            rule = next((one for one in rules if one.fits(asked)), None)
            if rule is not None:
                with self._lock:
                    reply = rule.reply_to(asked)
                given = reply(asked) if callable(reply) else reply
                if isinstance(given, str):
                    return Answer.of(given)
                return checked_kind("the answer", given, Answer, "an Answer, or its text")
        except Exception as error:
            problem = f"the script's function for job {asked.id} raised {type(error).__name__}"
            raise GenerationError(ErrorCode.PREPARATION_ERROR, problem) from error
        raise GenerationError(
            ErrorCode.PREPARATION_ERROR,
            f"the script has no answer for job {asked.id}. Fix: add one that fits its prompt, which "
            "`unanswered` of the script shows",
        )

    def clear(self) -> None:
        """Forget rules and jobs."""
        with self._lock:
            self._asked.clear()
            self.unanswered.clear()
            self.problems.clear()
            self._rules.clear()

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a script from a file. Raises BadInput, also for what its Python raises.

        .toml: tables `[[answers]]`, with `to` and `model` as in `answer` and the fields of an Answer. .py:
        Python that sets `script`.
        """
        place = checked_kind("path", path, str | PathLike, "the path of a script")
        try:
            path = Path(check_path(os.fspath(place)))
        except (TypeError, ValueError) as error:  # TypeError: of bytes
            raise BadInput(f"path: {error}") from None
        try:
            return cls._from_python(path) if path.suffix == ".py" else cls._from_toml(path)
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: cannot be read: {error}") from None

    @classmethod
    def _from_python(cls, path: Path) -> Self:
        try:
            script = runpy.run_path(str(path)).get("script")
        except (OSError, BadInput):
            raise
        except Exception as error:
            lines = [at.lineno for at in extract_tb(error.__traceback__) if at.filename == str(path)]
            place = f" in line {lines[-1]}" if lines else ""
            raise BadInput(f"{path}: raised {type(error).__name__}{place}: {error}") from error
        if not isinstance(script, cls):
            raise BadInput(f"{path}: sets no `script`. Fix: script = llama_herd.testing.Script()")
        return script

    @classmethod
    def _from_toml(cls, path: Path) -> Self:
        script = cls()
        rows: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("answers", [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise BadInput(f"{path}: `answers` must be tables. Fix: [[answers]] with a text")
        for number, row in enumerate(rows, start=1):
            fields = dict(row)
            to, model = fields.pop("to", None), fields.pop("model", None)
            try:
                script.answer(Answer.from_dict(fields), to=to, model=model)
            except (BadInput, TypeError) as error:
                raise BadInput(f"{path}: answer {number}: {error}") from None
        if not rows:
            raise BadInput(f"{path}: has no answers. Fix: [[answers]] with a text")
        return script
