"""Each link of a job carries the queue to which its own app would send it, however it is linked."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group, signals
from celery.app.amqp import AMQP
from celery.canvas import Signature
from kombu import Exchange, Queue
from kombu.utils.json import dumps, loads

from llama_herd.tasks.links import route_links
from llama_herd.tasks.protocol.message import KIND_OF_TASK, TASK_NAME

Canvas = Any
CARRIED = ("callbacks", "errbacks", "chain", "chord")

pytestmark = pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")


@pytest.fixture(params=[1, 2])
def shop(request: pytest.FixtureRequest) -> Celery:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    route_links(app)
    app.conf.update(
        task_default_queue="shop",
        task_protocol=request.param,
        task_routes={"billing.*": "billing", "mail.*": {"exchange": "mails", "routing_key": "mail.out"}},
    )

    @app.task(name="shop.late", queue="night", shared=False)
    def late(*_: Any) -> None:
        """A task with a queue of its own."""

    return app


@pytest.fixture
def sent(shop: Celery) -> Iterator[list[dict[str, Any]]]:
    """What the shop's messages carry, as a worker reads it."""
    found: list[dict[str, Any]] = []

    def note(sender: str, body: Any, **_: Any) -> None:
        if sender in KIND_OF_TASK:
            carried = {key: body.get(key) for key in CARRIED} if isinstance(body, dict) else body[2]
            found.append(loads(dumps(carried)))

    signals.before_task_publish.connect(note)
    yield found
    signals.before_task_publish.disconnect(note)


def ours(shop: Celery, task: str = TASK_NAME, **options: Any) -> Signature:
    return shop.signature(
        task, kwargs={"prompt": "a tale"}, queue="herd.m", immutable=True, app=shop, **options
    )


def leaves(carried: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All tasks that are no canvas, and their options, wherever they stand."""
    if isinstance(carried, list):
        for one in carried:
            yield from leaves(one)
    elif isinstance(carried, dict) and "task" in carried:
        name, options = carried["task"], carried["options"]
        if not name.startswith("celery."):
            yield name, options
        kwargs = carried["kwargs"] if name.startswith("celery.") else {}
        for inside in (*kwargs.values(), *(options.get(key) for key in ("link", "link_error", "chord"))):
            yield from leaves(inside)
    elif isinstance(carried, dict):
        for key in CARRIED:
            yield from leaves(carried.get(key))


def canvases(shop: Celery) -> dict[str, Canvas]:
    def theirs(name: str = "shop.keep", **options: Any) -> Signature:
        return shop.signature(name, app=shop, **options)

    all_of_it = group(theirs(), theirs("billing.charge"), app=shop)
    return {
        "chain": chain(ours(shop), theirs(), theirs("billing.charge"), app=shop),
        "group in a chain": chain(ours(shop), all_of_it, app=shop),
        "chord in a chain": chain(ours(shop), chord([theirs(), theirs("mail.send")], theirs(), app=shop)),
        "chord": chord([ours(shop), ours(shop)], theirs("billing.charge"), app=shop),
        "body of several": chord([ours(shop)], chain(theirs(), theirs("billing.charge"), app=shop), app=shop),
        "callback": ours(shop, link=[theirs("shop.late")]),
        "errback": ours(shop).on_error(theirs("billing.charge")),
        "link of a link": chain(ours(shop), theirs(link=[theirs("shop.late")]).on_error(theirs()), app=shop),
    }


@pytest.mark.parametrize("name", canvases(Celery(set_as_current=False)))
def test_every_link_goes_where_its_app_sends_it(shop: Celery, sent: list[dict[str, Any]], name: str) -> None:
    canvases(shop)[name].apply_async()
    if shop.conf.task_protocol == 1 and name not in ("callback", "errback", "chord", "body of several"):
        return  # that protocol carries no chains
    found = [leaf for carried in sent for leaf in leaves(carried)]
    assert found
    for task, options in found:
        expected = {
            "shop.keep": {"queue": "shop"},
            "billing.charge": {"queue": "billing"},
            "shop.late": {"queue": "night"},
            "mail.send": {"exchange": "mails", "routing_key": "mail.out"},
        }[task]
        assert expected.items() <= options.items(), task


def test_what_names_its_place_keeps_it_and_so_does_a_generation(
    shop: Celery, sent: list[dict[str, Any]]
) -> None:
    named = shop.signature("shop.keep", queue="named", app=shop)
    by_key = shop.signature("shop.keep", exchange="orders", routing_key="orders.new", app=shop)
    again = shop.signature(TASK_NAME, kwargs={"prompt": "b"}, app=shop)
    chain(ours(shop, link=[named, by_key, again]), app=shop).apply_async()
    options = [one["options"] for one in sent[0]["callbacks"]]
    assert [one.get("queue") for one in options] == ["named", None, None]
    assert options[1]["routing_key"] == "orders.new"
    shop.conf.task_routes = {TASK_NAME: "herd.other"}
    shop.amqp.flush_routes()
    shop.amqp.router = shop.amqp.Router()
    ours(shop, link=[again]).apply_async()
    assert sent[1]["callbacks"][0]["options"]["queue"] == "herd.other"


@pytest.mark.parametrize("task", KIND_OF_TASK)
def test_a_job_of_any_task_carries_queues_and_gets_none_as_a_link(
    shop: Celery, sent: list[dict[str, Any]], task: str
) -> None:
    again = shop.signature(task, kwargs={"texts": ["b"]}, app=shop)
    ours(shop, task, link=[shop.signature("shop.keep", app=shop), again]).apply_async()
    assert [one["options"].get("queue") for one in sent[0]["callbacks"]] == ["shop", None]


def test_the_signatures_of_the_sender_stay_as_they_are(shop: Celery, sent: list[dict[str, Any]]) -> None:
    link = shop.signature("shop.keep", app=shop)
    ours(shop, link=[link]).apply_async()
    assert sent[0]["callbacks"][0]["options"]["queue"] == "shop"
    assert "queue" not in link.options


def test_messages_of_the_shops_own_tasks_stay_as_they_are(shop: Celery) -> None:
    found: list[Any] = []
    signals.before_task_publish.connect(lambda body, **_: found.append(body), weak=False, dispatch_uid="own")
    link = shop.signature("shop.keep", app=shop)
    shop.signature("shop.first", link=[link], app=shop).apply_async()
    signals.before_task_publish.disconnect(dispatch_uid="own")
    carried = found[0] if isinstance(found[0], dict) else found[0][2]
    assert "queue" not in carried["callbacks"][0]["options"]


def test_it_may_come_before_or_after_all_else_is_said_of_the_app() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    assert app.amqp.queues is not None
    route_links(app)
    app.conf.task_queues = [Queue("orders", Exchange("all orders"), "orders.#")]
    app.conf.task_default_queue = "orders"
    message = app.amqp.create_task_message("1", TASK_NAME, callbacks=[app.signature("shop.keep")])
    assert message.body[2]["callbacks"][0]["options"]["queue"] == "orders"


def test_an_app_that_routes_links_can_be_pickled_and_routes_them_again() -> None:
    """As where processes are spawned."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = "shop"
    route_links(app)
    again = pickle.loads(pickle.dumps(app))
    message = again.amqp.create_task_message("1", TASK_NAME, callbacks=[again.signature("shop.keep")])
    assert message.body[2]["callbacks"][0]["options"]["queue"] == "shop"


class OwnAmqp(AMQP):  # type: ignore[misc]
    """An app's own: its messages are marked."""

    def as_task_v2(self, *args: Any, **options: Any) -> Any:
        message = super().as_task_v2(*args, **options)
        message.headers["marked"] = True
        return message


def test_an_app_keeps_its_own_way_to_make_messages_and_may_ask_twice() -> None:
    app = Celery("shop", broker="memory://", amqp=OwnAmqp, set_as_current=False)
    app.conf.task_default_queue = "shop"
    route_links(app)
    kind = app.amqp_cls
    route_links(app)
    assert app.amqp_cls is kind
    message = app.amqp.create_task_message("1", TASK_NAME, callbacks=[app.signature("shop.keep")])
    assert message.headers["marked"]
    assert message.body[2]["callbacks"][0]["options"]["queue"] == "shop"


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        ("redis://u:secret@h/0", "broker"),
        ("redis://u:secret@h/1", "redis://u:***@h/1"),
        ("sentinel://h1:26379/2;sentinel://h2:26379/2", "sentinel://h1:26379/2"),
        ("db+postgresql://u:secret@h/x", "db+postgresql://u:***@h/x"),
        ("django-db", "django-db"),
        (None, None),
    ],
)
def test_a_generation_says_where_its_sender_looks_for_results(backend: str | None, told: str | None) -> None:
    app = Celery("shop", broker="redis://u:secret@h/0", backend=backend, set_as_current=False)
    route_links(app)
    made = app.amqp.task_protocols[2]
    assert made("id", TASK_NAME).headers.get("herd_results_at") == told
    assert "herd_results_at" not in made("id", "shop.other").headers
