"""The page in a real Chromium: tokens as they come, a link that lasts, keys, and everybody's ways to look."""

import json

import pytest
from redis import Redis

from llama_herd.errors import UnservedModel
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import Client
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.browser import SHIFT, Tab
from tests.page import CONTRAST, NAMED, ask, is_over, job_of, named, needs_chromium, said, unnamed
from tests.worker.page.opening import LONG, Open

pytestmark = [pytest.mark.redis, pytest.mark.program, pytest.mark.timeout(120), needs_chromium]


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
