"""The page's console in Node, on a real gateway that wants a key: each action once, by whom it is for."""

import shutil
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.security.api_keys import KeyRole
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.gateway.page_program import run_page_program
from tests.tasks.gateway.test_dead_routes import PROMPT, bury
from tests.tasks.gateway.test_identity import made
from tests.tasks.herd import FAILURE, JOB, QUEUE, Herd, end, ids, started, token
from tests.tasks.ledger.test_dead_letters import poison

pytestmark = [
    pytest.mark.redis,
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("node"), reason="no node"),
]


BEGIN = """
import {readFileSync} from 'node:fs'
const {dom, url, key, given} = JSON.parse(readFileSync(0))
const {document, once, press, pressable} = await import(dom)
const fetched = globalThis.fetch
globalThis.location = {hash: ''}
Object.assign(globalThis, {document, sessionStorage: {getItem: () => key}})
globalThis.fetch = (path, options) => fetched(new URL(path, url), options)
const box = document.createElement('section')
const query = (text) => ({id: '', query: new URLSearchParams(text)})
const body = () => box.querySelector('tbody')
const rows = () => body().children.map((row) => row.children.map((cell) => cell.textContent))
const said = () => box.querySelector('output').textContent
const boxes = () => body().all().filter((one) => one.type === 'checkbox')
const tell = (told) => { console.log(JSON.stringify(told)); process.exit() }
"""


def run(gateway: GatewayThread, key: str, code: str, **given: object) -> Any:
    """What a program with the page's modules tells."""
    return run_page_program(BEGIN + code, gateway.url, key, given=given)


@pytest.fixture
def key(redis: Redis) -> str:
    """An operator's."""
    return made(redis, "one")


def fail(herd: Herd, job_id: str, job: GenerationJob = JOB) -> None:
    herd.submit(job_id, job)
    herd.claimed(job_id, "w")
    event = End(seq=1, job=job_id, epoch=1, finish_reason="error", n=0, attempts=1, error=FAILURE, worker="w")
    herd.emit("w", EmitEntry.from_event(event, 0))


RETRY = """
const {Jobs} = await import('./jobs.mjs')
const jobs = new Jobs(box)
await jobs.open(query(''))
const before = rows()
boxes()[0].tick(); boxes()[1].tick()
const asked = [await press(box, 'Run again', 'No')]
const {ask} = await import('./server.mjs')
const unsure = [said(), (await ask('GET', 'v1/jobs?state=queued')).data]
asked.push(await press(box, 'Run again', 'Run again'))
await once(() => said().endsWith('again.'))
tell({before, asked, unsure, said: said()})
"""


def test_failed_jobs_are_listed_and_run_again(closed_gateway: GatewayThread, herd: Herd, key: str) -> None:
    for name in "abc":
        fail(herd, name)
    told = run(closed_gateway, key, RETRY)
    assert [row[1] for row in told["before"]] == ["c", "b", "a"]
    state, model, _, _, _, tokens, worker, why = told["before"][0][2:]
    assert (state, model, tokens, worker) == ("failed", "tales", "0", "w")
    assert why == "out_of_memory: no room"
    question = "Run 2 jobs again? Each becomes a new job, which names the old one."
    assert told["asked"] == [question, question]
    assert told["unsure"] == ["", []]
    assert told["said"] == "2 jobs will run again."
    retried = [
        closed_gateway.ask("GET", f"/v1/jobs/{one}", headers={"Authorization": f"Bearer {key}"}).json
        for one in "abc"
    ]
    assert [one["retried_as"] is not None for one in retried] == [False, True, True]
    assert ids(herd)[-2:] == [retried[2]["retried_as"], retried[1]["retried_as"]]


CANCEL = """
const {Jobs} = await import('./jobs.mjs')
const jobs = new Jobs(box)
await jobs.open(query('state=queued'))
box.all().find((one) => one.type === 'checkbox').tick() // all
const asked = await press(box, 'Cancel', 'Cancel')
await once(() => rows()[0][0] === 'No such job.')
tell({asked, said: said()})
"""


def test_waiting_jobs_are_cancelled_together(closed_gateway: GatewayThread, herd: Herd, key: str) -> None:
    for name in "abc":
        herd.submit(name)
    told = run(closed_gateway, key, CANCEL)
    assert told == {"asked": "Cancel 3 jobs? What they have written is kept.", "said": "3 jobs cancelled."}
    assert {herd.field(name, "state") for name in "abc"} == {"cancelled"}


SEARCH = """
const {Jobs} = await import('./jobs.mjs')
const jobs = new Jobs(box)
const found = []
for (const text of given.searches) {
  await jobs.open(query(text))
  found.push(rows().map((row) => row[1] ?? row[0]))
}
const trouble = box.querySelector('.trouble').textContent
const form = box.querySelector('form')
form.elements.q.value = ' some-id '
form.dispatch('submit')
const byId = location.hash
Object.assign(form.elements.q, {value: 'order=1'})
Object.assign(form.elements.state, {value: 'done'})
form.dispatch('submit')
await jobs.open(query('state=ended'))
const first = rows().length
const paths = []
const near = globalThis.fetch
let isAway = true
globalThis.fetch = async (path, options) => {
  paths.push(path)
  if (isAway) throw new TypeError('away')
  return near(path, options)
}
form.elements.state.value = 'queued' // and no search for it
;(await pressable(box, 'Show more')).click()
await once(() => box.querySelector('.trouble').textContent === 'away')
const away = rows().length
isAway = false
;(await pressable(box, 'Show more')).click()
await once(() => rows().length > first)
tell({found, trouble, byId, byNote: location.hash, first, away, more: rows().length, paths})
"""


def test_jobs_are_searched_and_paged(closed_gateway: GatewayThread, herd: Herd, key: str) -> None:
    for number in range(60):
        fail(herd, f"f{number}", JOB.model_copy(update={"metadata": {"order": str(number)}}))
    other = GenerationJob(prompt="x", model="other")
    run_call(herd.redis, herd.ledger.submit("o", other, Envelope.for_job("o", "herd.other")))
    searches = ["q=order%3D7", "state=unserved", "state=queued&model=other", "state=done"]
    searches += ["since=3600s&q=order=9", "state=running&q=order=9"]
    told = run(closed_gateway, key, SEARCH, searches=searches)
    assert told["found"] == [["f7"], ["o"], ["No such job."], ["No such job."], ["f9"], ["No such job."]]
    assert "jobs that run or wait are not chosen by it" in told["trouble"]
    assert told["byId"] == "#jobs/some-id"
    assert told["byNote"] == "#jobs?state=done&q=order%3D1"
    assert (told["first"], told["away"], told["more"]) == (50, 50, 60)
    assert all("state=ended" in path and "after=" in path for path in told["paths"])


OPEN = """
const {Job} = await import('./job.mjs')
const job = new Job(box, () => given.role)
await job.open({id: given.id})
const names = box.all().filter((one) => one.tag === 'button' && !one.hidden).map((one) => one.textContent)
const links = box.all().filter((one) => one.tag === 'a').map((one) => one.href)
const shown = {names, links, text: box.textContent}
if (given.act) {
  await press(box, given.act, given.act === 'Cancel' ? 'Cancel it' : given.act)
  if (given.act === 'Cancel') await once(() => box.textContent.includes('cancelled'))
  else await once(() => location.hash)
}
tell({...shown, hash: location.hash})
"""


def test_a_job_is_opened_and_run_again(closed_gateway: GatewayThread, herd: Herd, key: str) -> None:
    herd.submit("a", JOB.model_copy(update={"metadata": {"order": "7"}}))
    herd.claimed("a", "w")
    herd.emit("w", started("a"), token("a", 2, 0), end("a", 3, 1))
    told = run(closed_gateway, key, OPEN, id="a", role="operator", act="Run again")
    assert told["names"] == ["Run again"]
    for part in (
        "done · 1 token",
        PROMPT,
        "<2.1>",
        "order7",
        "max_tokens",
        "Accepted",
        "Claimed on w",
        "Ended: stop",
    ):
        assert part in told["text"], part
    new_id = told["hash"].removeprefix("#jobs/")
    again = run(closed_gateway, key, OPEN, id=new_id, role="operator")
    assert "#jobs/a" in again["links"]
    old = run(closed_gateway, key, OPEN, id="a", role="operator")
    assert old["names"] == []  # it runs again already
    assert told["hash"] in old["links"]


OUTAGE = """
const {Job} = await import('./job.mjs')
const [plainFetch, plainTimeout] = [globalThis.fetch, globalThis.setTimeout]
globalThis.setTimeout = (act, ms) => plainTimeout(act, Math.min(ms, 10))
globalThis.fetch = () => Promise.reject(new TypeError('away'))
const job = new Job(box, () => 'operator')
await job.open({id: 'a'})
const away = box.textContent
globalThis.fetch = plainFetch
await once(() => box.textContent.includes('done'))
tell({away, trouble: box.querySelector('.trouble').textContent})
"""


def test_a_job_is_looked_at_again_when_the_gateway_was_away(
    closed_gateway: GatewayThread, herd: Herd, key: str
) -> None:
    herd.submit("a")
    herd.claimed("a", "w")
    herd.emit("w", started("a"), end("a", 2, 0))
    told = run(closed_gateway, key, OUTAGE)
    assert ("away" in told["away"], told["trouble"]) == (True, "")


def test_a_failed_job_says_why_and_one_that_is_not_there_too(
    closed_gateway: GatewayThread, herd: Herd, key: str
) -> None:
    fail(herd, "a")
    assert (
        "failed: no room (out_of_memory)" in run(closed_gateway, key, OPEN, id="a", role="operator")["text"]
    )
    assert "no such job" in run(closed_gateway, key, OPEN, id="nothing", role="operator")["text"]


def test_a_smaller_key_sees_no_prompt_and_no_action_above_it(
    closed_gateway: GatewayThread, redis: Redis, herd: Herd, key: str
) -> None:
    herd.submit("a")
    for role, names in ((KeyRole.SUBSCRIBER, []), (KeyRole.PRODUCER, ["Cancel"])):
        told = run(closed_gateway, made(redis, role, role=role), OPEN, id="a", role=role)
        assert told["names"] == names
        assert PROMPT not in told["text"]
    run(closed_gateway, key, OPEN, id="a", role="operator", act="Cancel")
    assert herd.field("a", "state") == "cancelled"


DEAD = """
const {Dead} = await import('./dead.mjs')
const dead = new Dead(box)
await dead.open({id: given.letter})
const before = rows()
const letter = box.querySelector('pre').textContent
const pick = (name) => boxes()[rows().findIndex((row) => row[1].includes(name))].tick()
pick(given.letter)
const asked = [await press(box, 'Send again', 'Send again')]
await once(() => rows().length === before.length - 1)
for (const name of given.dropped) pick(name)
asked.push(await press(box, 'Drop', 'Drop'))
await once(() => rows()[0][0] === 'Nothing is dead.')
tell({before, letter, asked})
"""


def test_dead_letters_are_read_sent_again_and_dropped(
    closed_gateway: GatewayThread, herd: Herd, key: str
) -> None:
    poison(herd, "job-1")
    herd.redis.delete(QUEUE)
    other, letter = bury(herd.redis), bury(herd.redis)
    told = run(closed_gateway, key, DEAD, letter=letter, dropped=[other, "job-1"])
    assert {row[1] for row in told["before"]} == {f"Letter {letter}", f"Letter {other}", "Job job-1"}
    assert told["letter"] == PROMPT
    assert told["asked"] == [
        "Send 1 item again? A message goes back to its queue, a job runs under a new id.",
        "Drop 2 items for ever? Nobody can bring them back.",
    ]
    assert herd.messages() == [PROMPT.encode()]


HERD = """
const {Herd} = await import('./herd.mjs')
const {document: page} = globalThis
const part = (id) => page.getElementById(id)
for (const name of ['queues', 'jobs']) part(name).append(page.createElement('tbody'))
for (const className of ['line', 'area', 'cursor']) {
  part('plot').append(Object.assign(page.createElement('path'), {className}))
}
const herd = new Herd(() => {}, (error) => tell(error.message))
await herd.look()
const told = {dead: part('dead-queues').textContent, queues: part('queues').textContent}
told.names = page.body.all().concat(...['workers', 'queues', 'dead-queues'].map((id) => part(id).all()))
  .filter((one) => one.tag === 'button').map((one) => one.textContent)
told.asked = []
for (const [id, name, yes, said] of given.acts) {
  told.asked.push(await press(part(id), name, yes))
  await once(() => part('acted').textContent === said)
  await herd.look()
}
tell({...told, workers: part('workers').textContent, after: part('queues').textContent})
"""


def test_the_herd_is_acted_on_by_operators(closed_gateway: GatewayThread, herd: Herd, key: str) -> None:
    """A queue that nobody serves is cleared, one that is served paused and resumed, a worker drained."""
    job = GenerationJob(prompt="x", model="nobody")
    run_call(herd.redis, herd.ledger.submit("a", job, Envelope.for_job("a", "herd.nobody")))
    acts = [
        ("dead-queues", "Clear", "End all", "1 job of nobody cancelled."),
        ("queues", "Pause", "Pause", "tales is paused."),
        ("queues", "Resume", "Resume", "tales goes on."),
        ("workers", "Drain", "Drain", "w is drained."),
    ]
    told = run(closed_gateway, key, HERD, acts=[])
    assert told["dead"] == "No worker serves nobody: 1 job is left.Clear"
    assert sorted(told["names"]) == ["Clear", "Drain", "Pause", "Pause"]
    told = run(closed_gateway, key, HERD, acts=acts[:1])
    assert told["asked"] == ["End all 1 job of nobody, those that run and those that wait?"]
    assert herd.redis.exists("herd.nobody") == 0
    closed_gateway.forget()
    told = run(closed_gateway, key, HERD, acts=acts[1:])
    assert [asked.partition("?")[0] for asked in told["asked"]] == [
        "Pause tales",
        "Let workers take jobs of tales again",
        "Drain w",
    ]
    assert herd.redis.zscore("herd:default:drained", "w") is not None
    assert herd.redis.exists("herd:default:paused") == 0


def test_a_smaller_key_sees_the_herd_and_no_button(
    closed_gateway: GatewayThread, redis: Redis, herd: Herd
) -> None:
    job = GenerationJob(prompt="x", model="nobody")
    run_call(herd.redis, herd.ledger.submit("a", job, Envelope.for_job("a", "herd.nobody")))
    told = run(closed_gateway, made(redis, "plain", role=KeyRole.PRODUCER), HERD, acts=[])
    assert told["dead"] == "No worker serves nobody: 1 job is left."
    assert told["names"] == []


VIEWS = """
const {may, placeOf} = await import('./views.mjs')
const roles = ['subscriber', 'producer', 'operator']
const views = ['play', 'overview', 'job', 'batches', 'jobs', 'dead']
const places = given.hashes.map((hash) => placeOf(hash)).map(({view, id, query}) => [view, id, String(query)])
tell({seen: Object.fromEntries(roles.map((role) => [role, views.filter((view) => may(role, view))])), places})
"""


def test_a_view_is_named_by_its_address_and_shown_to_whom_it_is_for(closed_gateway: GatewayThread) -> None:
    hashes = [
        "",
        "#job=a/b",
        "#jobs",
        "#jobs?state=done&q=a%3D1",
        "#jobs/a%3Ab",
        "#dead/1-0",
        "#nonsense",
        "#denied",
    ]
    told = run(closed_gateway, "", VIEWS, hashes=hashes)
    assert told["seen"] == {
        "subscriber": ["play", "overview", "job"],
        "producer": ["play", "overview", "job", "batches"],
        "operator": ["play", "overview", "job", "batches", "jobs", "dead"],
    }
    assert told["places"] == [
        ["play", "", ""],
        ["play", "", ""],
        ["jobs", "", ""],
        ["jobs", "", "state=done&q=a%3D1"],
        ["job", "a:b", ""],
        ["dead", "1-0", ""],
        ["play", "", ""],
        ["play", "", ""],
    ]


PATIENCE = """
const {Picks} = await import('./picks.mjs')
const {ask} = await import('./server.mjs')
let num = 0
globalThis.fetch = async () => {
  num += 1
  const error = {2: {code: 'rate_limit_exceeded'}, 4: {code: 'job_running', message: 'not this one'}}[num]
  return new Response(JSON.stringify({error}), {status: error ? 429 : 200, headers: {'Retry-After': '1'}})
}
const picks = new Picks(() => {})
for (const name of ['a', 'b', 'c']) picks.box(name).tick()
picks.action('Go', {question: (n) => `${n}?`, said: (n) => `${n} done`, act: (id) => ask('POST', id)})
await press(picks.bar, 'Go', 'Go')
await once(() => picks.bar.querySelector('output').textContent.includes('done'))
tell([num, picks.bar.querySelector('output').textContent])
"""


def test_many_wait_for_a_key_that_has_asked_too_often_and_say_what_was_refused(
    closed_gateway: GatewayThread,
) -> None:
    assert run(closed_gateway, "", PATIENCE) == [4, "2 done. 1 not: not this one."]
