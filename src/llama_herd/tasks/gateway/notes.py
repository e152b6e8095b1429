"""Notes: facts about a request that are gathered on its way, for its line in the log."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from starlette.types import Scope

from llama_herd.tasks.gateway.errors import Problem
from llama_herd.tasks.message import TRACEPARENT, trace_id_of

_PLACE = "llama_herd.notes"


@dataclass(slots=True)
class Notes:
    """Facts for a request's line in the log. key: its name. error, cause: a code, and why; never its text."""

    key: str | None = None
    tenant: str | None = None
    job_id: str | None = None
    trace_id: str | None = None
    error: str | None = None
    cause: str | None = None

    def fail(self, problem: Problem) -> None:
        self.error = problem.code
        self.cause = problem.message if problem.cause is None else problem.cause


def notes_of(scope: Scope) -> Notes:
    """The notes of a request."""
    return cast(Notes, scope.setdefault(_PLACE, Notes()))


def traceparent_of(headers: Mapping[str, str]) -> str | None:
    """The W3C's header of the trace that a request belongs to; None if there is none of that form."""
    given = headers.get(TRACEPARENT)
    return given if trace_id_of({TRACEPARENT: given}) else None
