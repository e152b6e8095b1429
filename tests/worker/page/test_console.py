"""The page's console in a real Chromium: each action once, by an operator, and none by another key."""

import warnings
from functools import partial

import pytest
from redis import Redis

from llama_herd.errors import UnservedModel
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import Client
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.batch_api import BatchApi
from tests.browser import Tab
from tests.chaos.harness.patience import wait_until
from tests.page import CONTRAST, ask, job_of, needs_chromium, said, unnamed
from tests.tasks.gateway.test_dead_routes import bury
from tests.worker.page.opening import LONG, Open

pytestmark = [pytest.mark.redis, pytest.mark.program, pytest.mark.timeout(120), needs_chromium]


def answer(tab: Tab, name: str) -> str:
    """Press a button, wait for its question, say yes; what was asked."""
    tab.click(name)
    tab.wait("document.activeElement.textContent === 'No'")
    asked = tab.text(".question p")
    tab.press("Tab")
    tab.press("Enter")
    tab.wait("!document.querySelector('.question')")
    return asked


PICKS = "#view-{} .picks"


def test_failed_jobs_are_searched_opened_and_run_again(open_page: Open, client: Client, url: str) -> None:
    own = {"note": "browser"}
    jobs = [client.submit(prompt="x " * 20_000, model="tales", metadata=own) for _ in range(3)]
    for job in jobs:
        client.result(job)
    tab = open_page(f"{url}/#jobs?q=note%3Dbrowser")
    tab.wait("document.querySelectorAll('#view-jobs tbody a').length === 3")
    assert "prompt_too_long" in tab.text("#view-jobs tbody")
    tab.click(f"{PICKS.format('jobs')} input")
    assert answer(tab, f"{PICKS.format('jobs')} button:not([hidden])").startswith("Run 3 jobs again?")
    tab.wait("document.querySelector('#view-jobs output').textContent === '3 jobs will run again.'")
    tab.click(f'#view-jobs a[title="{jobs[0]}"]')
    tab.wait("document.querySelector('#view-job pre')")
    assert tab.run("document.activeElement.localName") == "h2"  # a screen reader goes on there
    assert "prompt_too_long" in tab.text("#view-job .state")
    again = str(tab.run("document.querySelector('#view-job .facts a').textContent"))
    assert client.job(again).metadata["retry_of"] == jobs[0]
    tab.click("#view-job .facts a")
    tab.wait(f"document.querySelector('#view-job code').textContent === '{again}'")
    tab.run("history.back()")
    tab.wait(f"document.querySelector('#view-job code').textContent === '{jobs[0]}'")
    tab.run("history.back()")
    tab.wait("document.body.dataset.view === 'jobs'")


def test_waiting_jobs_are_found_by_their_state_and_cancelled(open_page: Open, client: Client) -> None:
    for model in ("nobody", "nobody", "nobody", "endless"):
        with warnings.catch_warnings(action="ignore", category=UnservedModel):
            client.submit(prompt="x", sampling={"max_tokens": LONG}, model=model)
    tab = open_page()
    tab.click("#views [data-view=jobs]")
    tab.wait("document.body.dataset.view === 'jobs'")
    tab.run("document.querySelector('[name=state]').value = 'unserved'")
    tab.click("#view-jobs [type=submit]")
    tab.wait("document.querySelectorAll('#view-jobs tbody a').length === 3")
    tab.click(f"{PICKS.format('jobs')} input")
    assert answer(tab, f"{PICKS.format('jobs')} button:not([hidden])").startswith("Cancel 3 jobs?")
    tab.wait("document.querySelector('#view-jobs .none')")
    assert [job.model for job in client.jobs()] == ["endless"]
    client.cancel_jobs(model="nobody")  # and its messages


def test_dead_letters_are_read_sent_again_and_dropped(open_page: Open, server: EmbeddedRedis) -> None:
    with Redis.from_url(server.url) as redis:
        letters = [bury(redis, b"the message"), bury(redis, b"another")]
    tab = open_page()
    tab.wait("document.querySelector('#num-dead').textContent === ' 2'")
    tab.click("#views [data-view=dead]")
    tab.wait("document.querySelectorAll('#view-dead tbody a').length === 2")
    tab.click(f'#view-dead a[title="{letters[0]}"]')
    tab.wait("document.querySelector('#view-dead pre')?.textContent === 'the message'")
    tab.click(f'#view-dead [aria-label="Pick {letters[0]}"]')
    assert answer(tab, f"{PICKS.format('dead')} button").startswith("Send 1 item again?")
    tab.wait("document.querySelector('#view-dead output').textContent === '1 item sent again.'")
    # No worker can read it: it comes back, under another number.
    with Redis.from_url(server.url) as redis:
        dead = partial(run_call, redis, DeadLetters().letters())
        wait_until(lambda: [one.number for one in dead()][1:] == letters[1:], "it is dead again")
        again = dead()[0].number
    tab.click("#views [data-view=overview]")
    tab.click("#views [data-view=dead]")
    tab.wait(f"document.querySelector('#view-dead a[title=\"{again}\"]')")
    tab.click(f"{PICKS.format('dead')} input")
    assert answer(tab, f"{PICKS.format('dead')} button:nth-of-type(2)").startswith("Drop 2 items for ever?")
    tab.wait("document.querySelector('#view-dead .none') && !document.querySelector('#num-dead').textContent")


def test_a_queue_that_nobody_serves_is_cleared(open_page: Open, client: Client) -> None:
    with pytest.warns(UnservedModel):
        client.submit(prompt="x", model="nobody")
    with pytest.warns(UnservedModel):
        gone = client.submit(prompt="x", model="nobody")
    client.cancel(gone)
    tab = open_page()
    tab.wait("document.querySelector('#dead-queues .told')?.textContent.includes('1 job is left')")
    assert answer(tab, "#dead-queues button").startswith("End all 1 job of nobody")
    tab.wait("!document.querySelector('#dead-queues li, #queues .bad')")


def is_in_state(client: Client, worker: str, state: str) -> bool:
    return {one.name: one.state for one in client.workers()}[worker] == state


def test_a_queue_is_paused_and_a_worker_drained(open_page: Open, client: Client, url: str) -> None:
    tab = open_page(f"{url}/#overview")
    for name, gone, is_paused in (("Pause", "Resume", True), ("Resume", "Pause", False)):
        assert "tales" in answer(tab, f'#queues [aria-label="{name} tales"]')
        tab.wait(f"document.querySelector('#queues [aria-label=\"{gone} tales\"]')")
        queue = client.status().queue_of("tales")
        assert queue is not None
        assert queue.is_paused == is_paused
    for name, gone, state in (("Drain", "Resume", "drained"), ("Resume", "Drain", "ready")):
        assert "two@test" in answer(tab, f'#workers [aria-label="{name} two@test"]')
        tab.wait(f"document.querySelector('#workers [aria-label=\"{gone} two@test\"]')")
        wait_until(partial(is_in_state, client, "two@test", state), state)
    assert tab.text("#acted") == "two@test takes jobs again."
    tab.click("#views [data-view=play]")
    assert not tab.run("document.querySelector('#workers .drain').checkVisibility()")


#: Of each view: its address, and what it has once it is drawn.
VIEWS = {
    "overview": ("#overview", "#queues .pause"),
    "jobs": ("#jobs?state=ended", "#view-jobs tbody a"),
    "job": ("#jobs/none", "#view-job .trouble:not([hidden])"),
    "dead": ("#dead", "#view-dead .none"),
    "batches": ("#batches", "#batch-list > *"),
}


ROOM_BELOW = """(whole, last) => {
  const [below, end] = [whole, last].map(one => document.querySelector(one).getBoundingClientRect().bottom)
  return below - end
}"""


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_suits_a_narrow_window_and_who_does_not_see(
    open_page: Open, client: Client, url: str, view: str
) -> None:
    client.result(client.submit(prompt="x", model="tales", sampling={"max_tokens": 2}))
    address, drawn = VIEWS[view]
    tab = open_page(f"{url}/{address}", width=360, height=640, prefers_color_scheme="dark")
    tab.wait(f"document.body.dataset.view === '{view}' && document.querySelector('{drawn}')")
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    assert tab.run(f"({ROOM_BELOW})('header', '#views')") < 13, "the head is no higher than what is in it"
    assert unnamed(tab) == []
    lowest, text = min(tab.run(CONTRAST))
    assert lowest >= 4.5, text


def test_a_view_that_is_not_for_a_key_is_not_shown_to_it(
    open_page: Open, closed_url: str, server: EmbeddedRedis
) -> None:
    with Redis.from_url(server.url) as redis:
        key = run_dialogue(redis, create_key("plain", "default", KeyRole.PRODUCER))
        bury(redis, b"the message")
        try:
            tab = open_page(f"{closed_url}/#dead")
            tab.wait("document.activeElement.id === 'key'")
            tab.type(key)
            tab.press("Enter")
            tab.wait("document.body.dataset.view === 'denied'")
            shown = "[...document.querySelectorAll('#views a')].filter(one => one.checkVisibility())"
            assert tab.run(f"{shown}.map(one => one.dataset.view)") == ["play", "overview", "batches"]
            tab.run("location.hash = '#jobs'")
            assert tab.wait("document.querySelector('#view-denied').checkVisibility()")
            assert tab.text("#num-dead") == ""
            assert not any("v1/dead" in asked or "v1/jobs?" in asked for asked in tab.urls)
        finally:
            redis.delete("herd:keys", "herd:default:dead")


def test_a_talk_goes_on_while_other_views_are_looked_at(open_page: Open) -> None:
    tab = open_page()
    job_id = ask(tab, "Once upon a time", LONG)
    tab.wait(said(50))
    tab.click("#views [data-view=overview]")
    tab.wait("document.body.dataset.view === 'overview'")
    tab.wait("document.querySelector('#views [data-view=play]').hash.startsWith('#job=')")
    tab.click("#views [data-view=play]")
    tab.wait("document.body.dataset.view === 'play'")
    assert job_of(tab) == job_id
    assert tab.text(".given") == "Once upon a time"
    length = int(tab.run("document.querySelector('.said').textContent.length"))
    tab.wait(said(length))
    tab.reload()
    tab.wait(said(50))
    assert tab.text(".given") == "Once upon a time"


ROOM_BETWEEN = """batch => {
  const [answers, errors] = ['.output', '.error'].map(one => batch.querySelector(one))
  answers.hidden = false
  return errors.getBoundingClientRect().left - answers.getBoundingClientRect().right
}"""


def test_a_batch_is_seen_on_its_way_and_cancelled(open_page: Open, url: str) -> None:
    api = BatchApi(lambda: url)
    rows = [
        {"custom_id": f"c{n}", "prompt": "Once", "model": "endless", "max_tokens": LONG} for n in range(9)
    ]
    batch_id = api.begin(rows)
    tab = open_page()
    tab.wait("document.querySelector('.batch[data-state=ready] .about')?.textContent === '0 of 9 rows'")
    tab.click(".batch .cancel")
    assert api.end_of(batch_id)["status"] == "cancelled"
    tab.wait("document.querySelector('.batch .state')?.textContent === 'cancelled'")
    assert not tab.run("document.querySelector('.batch .error').hidden")
    assert tab.run("document.querySelector('.batch .cancel').hidden")
    assert tab.run(f"({ROOM_BETWEEN})(document.querySelector('.batch'))") < 16  # also where it has answers
    tab.resize(360, 200)
    for view in ("overview", "batches"):
        tab.click(f"#views [data-view={view}]")
        tab.wait(f"document.body.dataset.view === '{view}'")
        head = tab.run("document.querySelector('header').getBoundingClientRect().top")
        assert head == 0, "a view begins at its head"
