"""The page's picture in the README, from a real run: two workers that are kept busy, and a tale that comes.

python -m tests.page_shot docs/page.png
"""

import sys
from contextlib import ExitStack
from itertools import count, cycle, islice
from math import cos, pi
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks import Client
from llama_herd.worker.settings import WorkerSettings
from tests.browser import Browser, Tab
from tests.cli.gateway_process import GatewayProcess
from tests.local.processes import ForkedWorker
from tests.page import ask, said

PROMPTS = ("Long ago, a kind baker", "One evening, a great storm came", "The old owl", "In the deep forest")
WIDTH, HEIGHT = 1200, 700
#: Nearly the plot's two minutes, its waves, and the time between two looks at what is under way.
FEED_S, WAVE_S, PAUSE_S = 110, 40, 0.2


def feed(redis_url: str, is_over: Event) -> None:
    """Submit jobs in waves: one to four dozen that are not done."""
    with Client(redis_url) as client:
        for number in count():
            if is_over.wait(PAUSE_S):
                return
            wanted = 30 - round(18 * cos(2 * pi * number * PAUSE_S / WAVE_S))
            for prompt in islice(cycle(PROMPTS), max(0, wanted - len(client.jobs()))):
                client.submit(prompt=prompt, sampling={"max_tokens": 400, "ignore_eos": True})


def shoot(tab: Tab, path: Path) -> None:
    """Once the herd has run for a while, a tale after its first lines."""
    Event().wait(FEED_S)
    tab.click("[value=text] + span")
    ask(tab, "Once upon a time, a small hedgehog", 400, "tales")
    tab.wait(said(300))
    tab.shoot(path)


def main(path: Path) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        url = stack.enter_context(EmbeddedRedis()).url
        settings = WorkerSettings.read(redis_url=url, model=BUNDLED_MODEL, slots=32)
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
