"""The page in a real Chromium: tokens as they come, a link that lasts, keys, and everybody's ways to look."""

import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis

from llama_herd.errors import UnservedModel
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks import Client
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from llama_herd.tasks.settings import Settings
from tests.batch_api import BatchApi
from tests.browser import SHIFT, Browser, Tab
from tests.chaos.harness.patience import wait_until
from tests.cli.gateway_process import GatewayProcess
from tests.local.processes import WorkerProcess
from tests.page import ask, is_over, job_of, needs_chromium, said
from tests.tasks.gateway.test_dead_routes import bury
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.program, pytest.mark.timeout(120), needs_chromium]

#: Tokens of a job that is there as long as a test needs it, and is stopped then. The context is longer.
LONG, CONTEXT = 30_000, 32_768


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def url(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    endless = write_tiny_gguf(
        folder / "endless.gguf", eos=False, context_length=CONTEXT, sampling={"temp": 0.5}
    )
    options: dict[str, Any] = {"model_name": "endless", "slots": 4, "kv_cache_tokens": 4 * CONTEXT}
    limit = {"HERD_MAX_TOKENS_LIMIT": str(LONG)}
    one = WorkerProcess(server.url, endless, "one", folder / "one.log", env=limit, **options)
    two = WorkerProcess(server.url, BUNDLED_MODEL, "two", folder / "two.log")
    with one, two, GatewayProcess(server.url, folder / "gateway.log", **limit) as gateway:
        yield gateway.url


@pytest.fixture(scope="module")
def closed_url(url: str, server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway on the same herd that wants keys."""
    log, own = tmp_path_factory.mktemp("closed") / "log", {"HERD_GATEWAY_OPEN": "false"}
    with GatewayProcess(server.url, log, HERD_MAX_TOKENS_LIMIT=str(LONG), **own) as gateway:
        yield gateway.url


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[Client]:
    with Client(settings=Settings.read(redis_url=server.url, max_tokens_limit=LONG)) as client:
        yield client


Open = Callable[..., Tab]


@pytest.fixture
def open_page(browser: Browser, url: str, closed_url: str, client: Client) -> Iterator[Open]:
    """Opens the page. In the end nothing was wrong with it, and it has asked nobody but its gateway."""
    tabs: list[Tab] = []

    def opened(link: str = "", **how: Any) -> Tab:
        tabs.append(browser.open(link or url, **how))
        tabs[-1].wait("document.querySelector('.worker, #door[open]')")
        return tabs[-1]

    yield opened
    for tab in tabs:
        assert tab.complaints == []
        assert {asked for asked in tab.urls if not asked.startswith((f"{url}/", f"{closed_url}/"))} <= {
            "about:blank"
        }
        tab.close()
    for job in client.jobs():
        client.cancel(job.job_id)


def test_who_waits_for_the_page_outlives_its_reload(open_page: Open) -> None:
    tab = open_page()
    tab.run("window.isOld = true, setTimeout(() => location.reload(), 100), 0")
    tab.wait("!window.isOld && document.querySelector('.worker')")


def test_tokens_are_seen_as_they_come_and_a_job_is_stopped(open_page: Open, client: Client) -> None:
    tab = open_page()
    job_id = ask(tab, "Once upon a time", LONG)
    lengths = [0]
    for _ in range(3):
        grown = f"({said(lengths[-1])}) && document.querySelector('.said').textContent.length"
        lengths.append(int(tab.wait(grown)))
    assert lengths == sorted(set(lengths))
    assert tab.run("document.querySelector('#turns').role") == "log"
    assert not tab.run(is_over)  # a screen reader waits for the end
    assert "Running on one@test" in tab.text("#said")
    tab.click("#stop")
    tab.wait(is_over)
    assert "Stopped" in tab.text(".state")
    assert "Stopped" in tab.text("#said")
    assert tab.text(".said") == client.result(job_id).text
    assert tab.text(".given") == "Once upon a time"


def test_a_reload_and_a_link_find_the_same_stream(open_page: Open, client: Client) -> None:
    tab = open_page()
    job_id = ask(tab, "Once upon a time", LONG)
    tab.wait(said(100))
    tab.reload()
    tab.wait(said(500))
    assert tab.text(".given") == "Once upon a time"
    assert job_of(tab) == job_id
    other = open_page(str(tab.run("document.querySelector('.link').href")))
    other.wait(said(700))
    assert other.run("document.querySelector('.given')") is None  # who has the link knows no prompt
    other.click("#stop")
    text = client.result(job_id).text
    for one in (tab, other):
        one.wait(is_over)
        assert one.text(".said").strip() == text.strip()
    tab.reload()
    tab.wait(is_over)
    assert tab.text(".said") == text


def test_a_chat_goes_on_and_back(open_page: Open, client: Client, server: EmbeddedRedis) -> None:
    tab = open_page()
    tab.click("[value=chat] + span")
    first = ask(tab, "Tell a tale.", 4, "tales")
    tab.wait(is_over)
    second = ask(tab, "And then?", 4, "tales")
    tab.wait(is_over)
    answer = client.result(first).text.strip()
    with Redis.from_url(server.url, decode_responses=True) as redis:
        body = json.loads(str(redis.hget(client._core.ledger.job_key(second), "body")))
    contents = [(message["role"], message["content"]) for message in body["messages"]]
    assert contents == [("user", "Tell a tale."), ("assistant", answer), ("user", "And then?")]
    tab.run("history.back()")
    tab.wait("document.querySelectorAll('.turn').length === 1")
    assert job_of(tab) == first
    tab.wait(is_over)
    tab.run("history.forward()")
    tab.wait("document.querySelectorAll('.turn').length === 2")
    tab.click("#new")
    assert tab.run("document.querySelectorAll('.turn').length") == 0


def test_a_model_is_asked_as_its_files_say(open_page: Open) -> None:
    """As a chat if it has a template; with the recommended sampling, unless somebody has changed it."""
    tab = open_page()
    choose = "model => (Object.assign(document.querySelector('[name=model]'), {value: model})"
    choose += ".dispatchEvent(new Event('change', {bubbles: true})))"
    kind, temperature = (
        f"document.querySelector('[name={one}').value" for one in ("kind]:checked", "temperature]")
    )
    seen = f"[{kind}, {temperature}]"
    tab.wait(
        "document.querySelector('option[value=endless]') && document.querySelector('option[value=tales]')"
    )
    for model, asked in (("tales", ["chat", "0.8"]), ("endless", ["text", "0.5"])):
        tab.run(f"({choose})('{model}')")
        assert tab.run(seen) == asked
    assert "Write the beginning" in tab.run("document.querySelector('#welcome').innerText")
    tab.click("summary")
    tab.click("[name=temperature]")
    tab.run("document.activeElement.select()")
    tab.type("1.5")
    tab.run(f"({choose})('tales')")
    assert tab.run(seen) == ["chat", "1.5"]
    tab.click("[value=text] + span")
    tab.run(f"({choose})('tales')")
    assert tab.run(seen) == ["text", "1.5"]


def test_several_answers_stand_beside_each_other(open_page: Open, client: Client) -> None:
    tab = open_page()
    tab.run("document.querySelector('[name=n]').value = 3")
    job_id = ask(tab, "Once", 20)
    tab.wait(is_over)
    shown = tab.run("[...document.querySelectorAll('.said')].map(one => one.textContent)")
    assert shown == [choice.text for choice in client.result(job_id).choices or ()]


def test_a_wrong_field_is_named_and_focused(open_page: Open) -> None:
    tab = open_page()
    tab.run("document.querySelector('[name=top_p]').value = 0")
    tab.click("#prompt")
    tab.type("x")
    tab.click("#send")
    tab.wait("document.querySelector('#trouble').textContent.includes('top_p')")
    assert tab.run("document.activeElement.name") == "top_p"
    assert tab.run("document.activeElement.getAttribute('aria-invalid')") == "true"
    assert tab.run("document.querySelector('details').open")


def test_a_job_that_is_not_there_is_said_to_be_none(open_page: Open, url: str) -> None:
    tab = open_page(f"{url}/#job=nothing")
    tab.wait(is_over)
    assert "no such job" in tab.text(".state")


def test_the_herd_is_seen_live(open_page: Open, client: Client) -> None:
    tab = open_page()
    running = [client.submit(prompt="x", sampling={"max_tokens": LONG}, model="endless") for _ in range(4)]
    tab.wait("document.querySelectorAll('.worker .on').length === 4")
    with pytest.warns(UnservedModel):
        waits = client.submit(prompt="x", model="nobody")
    row = "document.querySelector('#jobs a[title=\"{}\"]')?.closest('tr')?.textContent.includes('{}')"
    tab.wait(row.format(waits, "unserved"))
    assert "4 / 4" in tab.text(".worker")
    assert tab.run("parseFloat(document.querySelector('.worker .bar i').style.width)") > 0
    assert tab.run("document.querySelectorAll('#queues tbody tr').length") == 3
    assert "none" in tab.text("#queues .bad")
    tab.wait("document.querySelector('#plot .line').getAttribute('d')?.includes('L')")
    tab.wait("Number(document.querySelector('#speed-now').textContent.replace(',', '')) > 0")
    assert "at most within two minutes" in tab.run("document.querySelector('#plot').ariaLabel")
    client.cancel(waits)
    tab.wait(f"!{row.format(waits, 'unserved')}")
    tab.wait(row.format(running[0], "running"))
    tab.click(f'#jobs a[title="{running[0]}"]')
    tab.wait(said(10))
    assert job_of(tab) == running[0]


@pytest.mark.parametrize("width", [320, 360, 400])
def test_a_narrow_window_cuts_off_nothing(open_page: Open, width: int) -> None:
    tab = open_page(width=width, height=640)
    ask(tab, "Once upon a time, " * 20, 900)
    tab.wait(is_over)
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    box = "document.querySelector('{}').getBoundingClientRect()"
    assert tab.run(f"{box.format('#send')}.bottom <= innerHeight")
    # The state of what has just come is not hidden by the form.
    assert tab.run(f"{box.format('.turn .state')}.bottom <= {box.format('#ask')}.top")
    too_wide = "[...document.querySelectorAll('main *, aside *')].filter(one => !one.closest('.unseen, svg')"
    too_wide += " && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML)"
    assert tab.run(too_wide) == []


def focused(tab: Tab) -> str:
    return str(tab.run("document.activeElement.id || document.activeElement.name"))


IS_SEEN = """
[document.activeElement, document.activeElement.closest('.switch')]
  .some(one => one === document.body || (one && getComputedStyle(one).outlineStyle !== 'none'))
"""


def tab_to(tab: Tab, wanted: str) -> None:
    for _ in range(30):
        if focused(tab) == wanted:
            return
        tab.press("Tab")
        assert tab.run(IS_SEEN), f"the focus at {focused(tab)} is not seen"
    raise AssertionError(f"no way by Tab to {wanted}")


def test_a_keyboard_is_enough(open_page: Open) -> None:
    tab = open_page()
    assert focused(tab) == "prompt"
    tab.type("Once upon a time")
    tab.run(f"document.querySelector('[name=max_tokens]').value = {LONG}")
    tab_to(tab, "send")
    tab.press("Space")
    tab.wait(said(100))
    assert focused(tab) == "stop"  # it stands where `send` stood
    tab.press("Enter")
    tab.wait("document.activeElement.id === 'send'")
    for _ in range(4):
        tab.press("Tab", SHIFT)
        if focused(tab) == "prompt":
            break
    tab.press("Tab")
    tab.press("Enter")  # the parameters open
    tab_to(tab, "temperature")
    while focused(tab) != "kind":
        tab.press("Tab", SHIFT)
    tab.press("ArrowRight")
    assert tab.run("document.querySelector('[name=kind]:checked').value") == "chat"


def test_everything_has_a_name_for_who_does_not_see(open_page: Open) -> None:
    tab = open_page()
    tab.click("summary")
    ask(tab, "Once", 5)
    tab.wait(is_over)
    assert set(NAMED) <= {role for role, _ in named(tab)}
    assert unnamed(tab) == []


NAMED = ("button", "textbox", "spinbutton", "combobox", "radio", "link", "log")
NAMED_TOO = ("img", "image", "table", "searchbox", "checkbox", "region", "dialog")


def named(tab: Tab) -> list[tuple[str, str]]:
    """The roles and names of all that needs a name."""
    return [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tab.call("Accessibility.getFullAXTree")["nodes"]
        if not node["ignored"] and node["role"]["value"] in NAMED + NAMED_TOO
    ]


def unnamed(tab: Tab) -> list[str]:
    return [role for role, name in named(tab) if not name]


#: The contrast of each text that is seen with what is behind it, the lowest first.
CONTRAST = """
(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number)
  const light = ([r, g, b]) => [r, g, b].map(one => one / 255)
    .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0)
  const behind = one => {
    for (; one; one = one.parentElement) {
      const color = rgb(getComputedStyle(one).backgroundColor)
      if (color.length === 3) return color
    }
  }
  const found = []
  for (const one of document.querySelectorAll('body *')) {
    const isText = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim())
    if (!isText || !one.checkVisibility() || one.closest('.unseen, noscript')) continue
    const pair = [light(rgb(getComputedStyle(one).color)), light(behind(one))].sort((a, b) => b - a)
    found.push([(pair[0] + 0.05) / (pair[1] + 0.05), one.textContent.slice(0, 40)])
  }
  return found.sort((a, b) => a[0] - b[0])
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_texts_are_read_well_in_both_schemes(open_page: Open, scheme: str) -> None:
    tab = open_page(prefers_color_scheme=scheme)
    welcome = tab.run(CONTRAST)
    tab.click("summary")
    ask(tab, "Once upon a time", 50)
    tab.wait(is_over)
    tab.run("document.querySelector('#trouble').hidden = false")
    tab.run("document.querySelector('#trouble').textContent = 'trouble'")
    lowest, text = min(*welcome, *tab.run(CONTRAST))
    assert lowest >= 4.5, text
    red = tab.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    assert (int(red) < 64) == (scheme == "dark")


def test_who_wants_no_motion_gets_none(open_page: Open) -> None:
    tab = open_page(prefers_reduced_motion="reduce")
    ask(tab, "Once upon a time", LONG)
    tab.wait(said(50))
    assert tab.run("document.getAnimations().length") == 0
    moving = open_page(tab.run("location.href"))
    moving.wait(said(50))
    assert moving.run("document.getAnimations().length") > 0


def test_a_key_is_asked_for_and_kept_in_the_tab_only(
    open_page: Open, closed_url: str, server: EmbeddedRedis, client: Client
) -> None:
    with Redis.from_url(server.url) as redis:
        keys = {role: run_dialogue(redis, create_key(role, "default", role)) for role in KeyRole}
        try:
            tab = open_page(closed_url)
            tab.wait("document.activeElement.id === 'key'")
            tab.type("herd-wrong")
            tab.press("Enter")
            tab.wait("document.querySelector('#door-trouble').textContent.includes('not known')")
            tab.run("document.activeElement.select()")
            tab.type(keys[KeyRole.OPERATOR])
            tab.press("Enter")
            tab.wait("document.querySelector('.worker')")
            assert tab.text("#whose") == "default · operator"
            job_id = ask(tab, "Once upon a time", LONG)
            tab.wait(said(50))
            tab.reload()
            tab.wait(said(200))
            assert tab.run("[localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
            tab.run("window.isOld = true")
            tab.click("#forget")
            tab.wait("!window.isOld && document.querySelector('#door')?.open")
            tab.wait("document.activeElement.id === 'key'")
            tab.type(keys[KeyRole.SUBSCRIBER])
            tab.press("Enter")
            tab.wait(said(300))  # the link leads back to the job
            assert job_of(tab) == job_id
            tab.wait("document.querySelector('#fields').disabled && document.querySelector('#send').disabled")
            assert tab.run("document.querySelector('#jobs-part').hidden")
            assert not any(keys[KeyRole.SUBSCRIBER] in asked for asked in tab.urls)
        finally:
            redis.delete("herd:keys")


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
        wait_until(
            lambda: [one.number for one in run_call(redis, DeadLetters().letters())][1:] == letters[1:],
            "it is dead again",
        )
    tab.click("#views [data-view=overview]")
    tab.click("#views [data-view=dead]")
    tab.wait("document.querySelectorAll('#view-dead tbody a').length === 2")
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
    "batches": ("#batches", "#batches > *"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_suits_a_narrow_window_and_who_does_not_see(
    open_page: Open, client: Client, url: str, view: str
) -> None:
    client.result(client.submit(prompt="x", model="tales", sampling={"max_tokens": 2}))
    address, drawn = VIEWS[view]
    tab = open_page(f"{url}/{address}", width=360, height=640, prefers_color_scheme="dark")
    tab.wait(f"document.body.dataset.view === '{view}' && document.querySelector('{drawn}')")
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
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
