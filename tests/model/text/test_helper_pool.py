"""Who renders heavy chats holds up no other, and all helpers end with their worker."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import psutil
import pytest

from llama_herd.model.text.chat import Renderer
from llama_herd.model.text.helper import HelperLimits, HelperPool
from llama_herd.model.text.template_files import DEFAULT
from tests.chaos.harness.patience import wait_until
from tests.model.text.helper_processes import helpers

GREETING = {DEFAULT: "{{ name }}"}


def renderers(num: int) -> HelperPool[Renderer]:
    """Of which one is started."""
    made = [Renderer(GREETING, HelperLimits()) for _ in range(num)]
    made[-1].start()
    return HelperPool(made)


def render(pool: HelperPool[Renderer], name: str) -> str:
    with pool.lent() as renderer:
        return renderer.render(DEFAULT, {"name": name})


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.mark.long
def test_a_chat_is_rendered_while_another_one_takes_its_time(threads: ThreadPoolExecutor) -> None:
    pool = renderers(2)
    (standing,) = helpers()
    standing.send_signal(signal.SIGSTOP)
    chats = [threads.submit(render, pool, name) for name in "ab"]
    done, others = wait(chats, return_when=FIRST_COMPLETED)
    assert (len(done), len(others)) == (1, 1)
    standing.send_signal(signal.SIGCONT)
    assert [chat.result() for chat in chats] == ["a", "b"]
    pool.close()
    assert helpers() == []


def test_helpers_are_started_when_they_are_needed(threads: ThreadPoolExecutor) -> None:
    pool = renderers(8)
    for _ in range(20):
        threads.submit(render, pool, "a").result()
    assert len(helpers()) == 1
    pool.close()


def test_who_waits_for_a_helper_gets_it_before_who_has_just_had_it(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[object] = []
    unnoted = Renderer.render

    def note(renderer: Renderer, template: str, variables: Mapping[str, object]) -> str:
        names.append(variables["name"])
        return unnoted(renderer, template, variables)

    monkeypatch.setattr(Renderer, "render", note)
    pool = renderers(1)
    (standing,) = helpers()
    standing.send_signal(signal.SIGSTOP)
    flood = threads.submit(lambda: [render(pool, "flood") for _ in range(3)])
    wait_until(lambda: names, "the flood has the helper")
    others = [threads.submit(render, pool, "other") for _ in range(2)]
    wait_until(lambda: len(pool._waiting) == 2, "the others wait for it")
    standing.send_signal(signal.SIGCONT)
    flood.result()
    assert [other.result() for other in others] == ["other", "other"]
    assert names == ["flood", "other", "other", "flood", "flood"]
    pool.close()


def test_a_helper_that_is_at_work_ends_when_it_is_done(threads: ThreadPoolExecutor) -> None:
    pool = renderers(1)
    (standing,) = helpers()
    standing.send_signal(signal.SIGSTOP)
    chat = threads.submit(render, pool, "a")
    wait_until(lambda: not pool._idle, "it is at work")
    pool.close()
    standing.send_signal(signal.SIGCONT)
    assert chat.result() == "a"
    assert helpers() == []


@pytest.mark.long
def test_helpers_end_when_their_worker_is_killed() -> None:
    """Also the first, whose connection a later one must not hold open."""
    script = (
        "import psutil\n"
        "from llama_herd.model.text.chat import Renderer\n"
        "from llama_herd.model.text.helper import HelperLimits\n"
        "renderers = [Renderer({'default': 'fine'}, HelperLimits()) for _ in range(3)]\n"
        "for renderer in renderers: renderer.start()\n"
        "print(*(child.pid for child in psutil.Process().children()), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        started = [psutil.Process(int(pid)) for pid in worker.stdout.readline().split()]
        assert len(started) == 3
        worker.kill()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []
