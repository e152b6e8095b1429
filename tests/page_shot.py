"""The page's picture in the README, from a real run: two workers that are kept busy, and a tale that comes.

python -m tests.page_shot docs/page.png
"""

import sys
from contextlib import ExitStack
from math import cos, pi
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from llama_herd.tasks import Client
from llama_herd.worker.local.redis_server import EmbeddedRedis
from llama_herd.worker.settings import BUNDLED_MODEL, WorkerSettings
from tests.browser import Browser, Tab
from tests.page import ask, said
from tests.worker.gateway_process import GatewayProcess
from tests.worker.processes import ForkedWorker

PROMPTS = ("Long ago, a kind baker", "One evening, a great storm came", "The old owl", "In the deep forest")
WIDTH, HEIGHT = 1200, 700
#: The plot's two minutes, and its waves.
FEED_S, WAVE_S = 110, 40


def feed(redis_url: str, is_over: Event) -> None:
    """Submit jobs in waves: at most two dozen that are not done."""
    with Client(redis_url) as client:
        for half_second in range(10_000):
            if is_over.wait(0.5):
                return
            wanted = 14 - round(10 * cos(pi * half_second / WAVE_S))
            for number in range(wanted - len(client.jobs())):
                sampling = {"max_tokens": 400, "temperature": 0.9}
                client.submit(prompt=PROMPTS[number % len(PROMPTS)], sampling=sampling)


def shoot(tab: Tab, path: Path) -> None:
    """Once the herd has run for a while, a tale after its first lines."""
    Event().wait(FEED_S)
    ask(tab, "Once upon a time, a small hedgehog", 400, "tales")
    tab.wait(said(400))
    tab.shoot(path)


def main(path: Path) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        url = stack.enter_context(EmbeddedRedis()).url
        settings = WorkerSettings.read(redis_url=url, model=BUNDLED_MODEL, slots=16)
        for name in ("one@herd", "two@herd"):
            stack.enter_context(ForkedWorker(settings, name, folder / name))
        gateway = stack.enter_context(GatewayProcess(url, folder / "gateway.log"))
        tab = stack.enter_context(Browser(folder / "chromium")).open(gateway.url, width=WIDTH, height=HEIGHT)
        is_over = Event()
        feeder = Thread(target=feed, args=(url, is_over))
        feeder.start()
        try:
            shoot(tab, path)
        finally:
            is_over.set()
            feeder.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
