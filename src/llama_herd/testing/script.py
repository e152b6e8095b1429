"""Script: which job gets which answer, and which jobs have asked."""

import re
import runpy
import threading
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from llama_herd.error_code import ErrorCode
from llama_herd.errors import BadInput, GenerationError
from llama_herd.tasks.protocol.job import GenerationJob
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
#: Which jobs are meant: those whose `text` an expression is found in, or that a function picks. None: all.
Condition = str | re.Pattern[str] | Callable[[AskedJob], bool] | None


class Rule(NamedTuple):
    """A row of the script: replies that jobs get in turn, the last one also those that come later."""

    replies: tuple[Reply, ...]
    to: Condition
    model: str | None
    turns: dict[tuple[str, str], int]  # of the jobs that had one: another attempt gets the same reply

    def fits(self, asked: AskedJob) -> bool:
        if self.model not in (None, asked.model):
            return False
        if callable(self.to):
            return self.to(asked)
        return self.to is None or re.search(self.to, asked.text) is not None

    def reply_to(self, asked: AskedJob) -> Reply:
        turn = self.turns.setdefault((asked.tenant, asked.id), len(self.turns))
        return self.replies[min(turn, len(self.replies) - 1)]


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

    unanswered: list[AskedJob] = field(default_factory=list)
    problems: list[Exception] = field(default_factory=list)
    _asked: dict[tuple[str, str], AskedJob] = field(default_factory=dict)
    _rules: list[Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, *replies: Reply, to: Condition = None, model: str | None = None) -> None:
        """Answer the jobs that are meant. Without a reply each gets what it asks for: see `Answer`.

        Raises BadInput if `to` is no expression.
        """
        if isinstance(to, str):
            try:
                to = re.compile(to)
            except re.error as error:
                raise BadInput(f"to={to!r} is no regular expression: {error}") from None
        with self._lock:
            self._rules.append(Rule(replies or (Answer(),), to, model, {}))

    @property
    def jobs(self) -> list[AskedJob]:
        with self._lock:
            return list(self._asked.values())

    def reply_to(self, asked: AskedJob) -> Answer:
        """The answer for a job. Raises GenerationError if there is none; no message quotes the prompt."""
        with self._lock:
            rules = self._rules[::-1]
            self._asked.setdefault((asked.tenant, asked.id), asked)
        try:
            rule = next((one for one in rules if one.fits(asked)), None)
            if rule is not None:
                with self._lock:
                    reply = rule.reply_to(asked)
                given = reply(asked) if callable(reply) else reply
                return Answer.of(given) if isinstance(given, str) else given
        except Exception as error:
            self.problems.append(error)
            problem = f"the script's function for job {asked.id} raised {type(error).__name__}"
            raise GenerationError(ErrorCode.PREPARATION_ERROR, problem) from error
        self.unanswered.append(asked)
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
    def load(cls, path: Path) -> Self:
        """Read a script from a file. Raises BadInput.

        .toml: tables `[[answers]]`, with `to` and `model` as in `answer` and the fields of an Answer. .py:
        Python that sets `script`.
        """
        try:
            return cls._from_python(path) if path.suffix == ".py" else cls._from_toml(path)
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: cannot be read: {error}") from None

    @classmethod
    def _from_python(cls, path: Path) -> Self:
        script = runpy.run_path(str(path)).get("script")
        if not isinstance(script, cls):
            raise BadInput(f"{path}: sets no `script`. Fix: script = llama_herd.testing.Script()")
        return script

    @classmethod
    def _from_toml(cls, path: Path) -> Self:
        script = cls()
        rows: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("answers", [])
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
