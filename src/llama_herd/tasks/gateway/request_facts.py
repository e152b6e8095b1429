"""Facts about a request that are gathered while it is answered, for its line in the log."""

from dataclasses import dataclass
from typing import cast

from starlette.types import Scope

from llama_herd.tasks.gateway.problem import Problem

_SCOPE_KEY = "llama_herd.facts"


@dataclass(slots=True)
class RequestFacts:
    """Facts for a request's line in the log. key: its name. error, cause: a code, and why; never its text."""

    key: str | None = None
    tenant: str | None = None
    job_id: str | None = None
    trace_id: str | None = None
    error: str | None = None
    cause: str | None = None

    def fail(self, problem: Problem) -> None:
        """Note why the request was not answered as it was meant."""
        self.error = problem.code
        self.cause = problem.message if problem.cause is None else problem.cause


def facts_of(scope: Scope) -> RequestFacts:
    """The facts of a request, which its ASGI scope holds."""
    return cast(RequestFacts, scope.setdefault(_SCOPE_KEY, RequestFacts()))
