"""Several herds behind one client: what one Redis cannot carry is split by model."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Unpack

from llama_herd.errors import BadInput, FieldError, InvalidJob
from llama_herd.tasks.client.arguments import MODEL, is_model, is_text
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.job_status import JobStatus
from llama_herd.tasks.client.tenant_status import Status
from llama_herd.tasks.ledger.answers import Cancellation, CancelReason
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.protocol.given import checked_kind
from llama_herd.tasks.protocol.job_fields import SubmitFields
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.terms import Terms, fields_of
from llama_herd.tasks.settings import shortened

#: Between the name of a herd and the id of its job. No id has one.
MARK = "@"


class Herds(AbstractContextManager["Herds"]):
    """Clients of several herds, each with a Redis of its own. A job goes to the herd of its model.

        herds = Herds({"north": Client(url), "south": Client(other)}, {"tales": "north"}, default="south")
        job_id = herds.submit(prompt="Once upon a time", model="tales")  # north@0f3c...
        print(herds.result(job_id).text)

    Its ids are `<herd>@<id>`; within its herd, and in the events, a job is called `<id>`. Each method has the
    arguments, the result and the errors of the same method of `Client`. What a client can do beyond these it
    does for its own herd: `client, job_id = herds.find(job_id)`.
    """

    def __init__(
        self, clients: Mapping[str, Client], models: Mapping[str, str], *, default: str | None = None
    ) -> None:
        """`models`: the name of each model's herd. `default`: that of all others; None: they are refused.

        Raises BadInput, also for the name of a herd that has no client, or that cannot stand in an id.
        """
        for name, client in checked_kind("clients", clients, Mapping, "clients by herds' names").items():
            if not is_text(name) or not name or MARK in name:
                wanted = f"the name of a herd must not be empty and have no {MARK}"
                raise BadInput(f"clients: {wanted}, got {shortened(name)}")
            checked_kind("clients", client, Client, "clients by herds' names")
        checked_kind("models", models, Mapping, "herds' names by models")
        given = [("models", one) for one in models.values()] + [("default", default)] * (default is not None)
        for name, herd in given:
            if not is_text(herd) or herd not in clients:
                known = sorted(clients)
                raise BadInput(f"{name}: no client is given for the herd {shortened(herd)}, only for {known}")
        self._clients = dict(clients)
        self._models = dict(models)
        self._default = default

    def find(self, job_id: str) -> tuple[Client, str]:
        """The client of a job's herd, and the job's id there. Raises InvalidJob if no herd has such ids."""
        name, _, own_id = job_id.partition(MARK) if isinstance(job_id, str) else ("", "", "")
        if name not in self._clients or not own_id:
            known = ", ".join(sorted(self._clients))
            raise InvalidJob([FieldError("job_id", f"must be <herd>{MARK}<id>, of one of the herds {known}")])
        return self._clients[name], own_id

    def submit(
        self,
        job: Job | None = None,
        *,
        job_id: str | None = None,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
        **fields: Unpack[SubmitFields],
    ) -> str:
        """Enqueue a job in the herd of its model. `job_id` is its id there, or with the name of that herd."""
        if isinstance(job, Terms):
            model = job.model
        else:
            model = (fields if job is None else fields_of(job)).get("model")
        if model is not None and not is_model(model):
            raise InvalidJob([FieldError("model", f"must be {MODEL}")])
        name = self._default if model is None else self._models.get(model, self._default)
        if name is None:
            known = ", ".join(sorted(self._models)) or "none"
            raise InvalidJob([FieldError("model", f"must be a model that a herd has: {known}")])
        if isinstance(job_id, str):  # what is no text the client refuses
            job_id = job_id.removeprefix(f"{name}{MARK}")
        accepted = self._clients[name].submit(
            job, job_id=job_id, idempotency_key=idempotency_key, traceparent=traceparent, **fields
        )
        return f"{name}{MARK}{accepted}"

    def stream(
        self,
        job_id: str,
        *,
        after: int | str = 0,
        timeout_s: float | None = None,
        timeout: float | None = None,
        wait: bool = True,
    ) -> Iterator[Event]:
        client, own_id = self.find(job_id)
        return client.stream(own_id, after=after, timeout_s=timeout_s, timeout=timeout, wait=wait)

    def result(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        wait: bool = False,
    ) -> Result:
        client, own_id = self.find(job_id)
        return client.result(own_id, timeout_s=timeout_s, timeout=timeout, wait=wait)

    def cancel(self, job_id: str, reason: CancelReason = "cancelled") -> Cancellation:
        client, own_id = self.find(job_id)
        return client.cancel(own_id, reason)

    def purge(self, job_id: str, *, search: bool = False) -> None:
        client, own_id = self.find(job_id)
        client.purge(own_id, search=search)

    def job(self, job_id: str) -> JobStatus:
        client, own_id = self.find(job_id)
        return client.job(own_id)

    def status(self) -> Mapping[str, Status]:
        """The state of each herd, by its name."""
        return {name: client.status() for name, client in self._clients.items()}

    def close(self) -> None:
        """Close all clients."""
        for client in self._clients.values():
            client.close()

    def __exit__(self, *_: object) -> None:
        self.close()
