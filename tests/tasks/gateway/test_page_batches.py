"""The buttons of a batch on the page, in Node, against a real gateway that wants a key."""

import shutil
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from tests.batch_api import BatchApi, rows
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.gateway.page_program import run_page_program
from tests.tasks.gateway.test_identity import made

pytestmark = [pytest.mark.redis, pytest.mark.skipif(not shutil.which("node"), reason="no node")]


CLICKS = """
import {readFileSync} from 'node:fs'
const {dom, url, key} = JSON.parse(readFileSync(0))
const {document, once, saved} = await import(dom)
const fetched = globalThis.fetch
Object.assign(globalThis, {document, sessionStorage: {getItem: () => key}})
globalThis.fetch = (path, options) => fetched(new URL(path, url), options)
const {Batches} = await import('./batches.mjs')
new Batches().allow(true)
const batch = await once(() => document.getElementById('batch-list').children[0])
const files = []
for (const kind of ['output', 'error']) {
  const button = batch.querySelector(`.${kind}`)
  const isShown = !button.hidden
  if (isShown) button.click()
  await once(() => !button.disabled)
  files.push({isShown, title: button.title})
}
for (const file of saved) files.push({name: file.name, text: await (await fetched(file.href)).text()})
console.log(JSON.stringify(files))
process.exit()
"""


def click(url: str, key: str) -> Any:
    """What those of both buttons do that the newest batch shows."""
    return run_page_program(CLICKS, url, key)


def test_the_answers_of_a_batch_are_saved_with_the_key(
    closed_gateway: GatewayThread, redis: Redis, redis_url: str
) -> None:
    api = BatchApi(lambda: closed_gateway.url, made(redis, "one"))
    with StandIn(redis_url):
        batch = api.end_of(api.begin(rows(3)))
    answers = api.ask("GET", f"/v1/files/{batch['output_file_id']}/content").raw.decode()
    shown, hidden, saved = click(closed_gateway.url, api.key)
    assert (shown, hidden["isShown"]) == ({"isShown": True, "title": ""}, False)
    assert saved == {"name": f"{batch['output_file_id']}.jsonl", "text": answers}
    assert answers.count("\n") == 3


def test_why_a_file_cannot_be_saved_is_said_at_its_button(
    closed_gateway: GatewayThread, redis: Redis, redis_url: str
) -> None:
    api = BatchApi(lambda: closed_gateway.url, made(redis, "one"))
    with StandIn(redis_url):
        batch = api.end_of(api.begin(rows(1)))
    assert api.ask("DELETE", f"/v1/files/{batch['output_file_id']}").status == 200
    shown, *_, last = click(closed_gateway.url, api.key)
    assert shown["isShown"]
    assert shown["title"].startswith("no such file")
    assert "name" not in last
