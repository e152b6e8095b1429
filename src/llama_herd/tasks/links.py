"""Links of a shop's jobs come home: the shop's own router says to which queue each goes, when it is made.

Each job also says where the shop looks for its result, so that a worker which stores it elsewhere can warn.

from llama_herd.tasks.links import route_links

app = Celery("shop", broker=url, backend=url)
app.conf.task_default_queue = "shop"
route_links(app)
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.utils.imports import symbol_by_name
from kombu import Exchange, Queue

from llama_herd.tasks.connection.redis_url import is_same_redis, masked
from llama_herd.tasks.protocol.given import checked_kind
from llama_herd.tasks.protocol.message import BESIDE_JOBS, RESULTS_AT, is_job_task

#: Arguments of Celery's own tasks that are tasks themselves.
_MEMBERS = {"celery.chain": ("tasks",), "celery.group": ("tasks",), "celery.chord": ("header", "body")}

#: What a message carries beside its task, and options of a task, that are tasks.
_CARRIED = ("callbacks", "errbacks", "chain", "chord")
_LINKED = ("link", "link_error", "chord")

#: Options that say where a task goes.
_PLACES = ("queue", "exchange", "routing_key")


def route_links(app: Celery) -> None:
    """Let each job that this app sends carry the queues of its links, errbacks, chains and chords.

    Those that name a queue keep it. The others go where the app itself would send them: by `task_routes`, by
    the task's own options, else into `task_default_queue`. Without this the worker, whose app is another one,
    sends them into its HERD_LINK_QUEUE. Call it once, before or after the app is configured. Raises BadInput
    for what is no app.
    """
    checked_kind("app", app, Celery, "a Celery app")
    own: type[AMQP] = symbol_by_name(app.amqp_cls)
    if not issubclass(own, LinkRouting):
        app.amqp_cls = LinkRouting if own is AMQP else type("LinkRouting", (LinkRouting, own), {})
        app.__dict__.pop("amqp", None)  # one that was made before


class LinkRouting(AMQP):  # type: ignore[misc]
    """Celery's maker of messages, or an app's own, which gives the links of jobs their queues."""

    def __init__(self, app: Celery) -> None:
        super().__init__(app)
        made: dict[int, Any] = vars(self)["task_protocols"]
        self.task_protocols = {version: _routed_by(app, make) for version, make in made.items()}


def _routed_by(app: Celery, make: Any) -> Any:
    """The function that makes a message, with routed links where it is a job's."""

    def made(task_id: str, name: str, *args: Any, **options: Any) -> Any:
        message = make(task_id, name, *args, **options)
        if is_job_task(name):
            body = message.body
            carried = body if isinstance(body, dict) else body[2]  # by the version of the protocol
            carried.update({key: _routed(app, carried[key]) for key in _CARRIED if carried.get(key)})
            backend, broker = app.conf.result_backend, app.conf.broker_url
            if "task" in message.headers and isinstance(backend, str):
                message.headers[RESULTS_AT] = _results_of(backend, str(broker))
        return message

    return made


@cache
def _results_of(backend: str, broker: str) -> str:
    """Where an app with these addresses looks for results, without secrets."""
    if is_same_redis(backend, broker):
        return BESIDE_JOBS
    first = backend.partition(";")[0]  # of Sentinels
    return masked(first) if "://" in first else first  # a name, such as django-db


def _routed(app: Celery, links: Any) -> Any:
    """The same tasks, each with its queue; what is no signature stays."""
    if isinstance(links, list | tuple):
        return [_routed(app, link) for link in links]
    if not isinstance(links, Mapping) or "task" not in links:
        return links
    link, name = dict(links), links["task"]
    options = dict(link.get("options") or {})
    if members := _MEMBERS.get(name):
        kwargs = dict(link.get("kwargs") or {})
        link["kwargs"] = kwargs | {key: _routed(app, kwargs[key]) for key in members if key in kwargs}
    elif not any(options.get(place) for place in _PLACES):
        options |= _place_of(app, link)
    options |= {key: _routed(app, options[key]) for key in _LINKED if options.get(key)}
    return link | {"options": options}


def _place_of(app: Celery, link: Mapping[str, Any]) -> dict[str, str]:
    """Where this app would send a task, as options of a message; for a job without a route none."""
    name, task = link["task"], app.tasks.get(link["task"])
    given = {place: value for place in _PLACES if (value := getattr(task, place, None))}
    args, kwargs = link.get("args") or (), link.get("kwargs") or {}
    router = app.amqp.router
    if is_job_task(name) and not given and router.lookup_route(name, args, kwargs, {}, task) is None:
        return {}  # the worker sends it into its own queue
    route = router.route(given, name, args, kwargs, task)
    found = {place: route[place] for place in _PLACES if route.get(place)}
    return {
        place: value.name if isinstance(value, Queue | Exchange) else str(value)
        for place, value in found.items()
    }
