"""`herd redis`: a Redis server on this machine, until Ctrl-C."""

import json
import signal
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from llama_herd.cli.terminal import say, show

Port = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Port; absent: that of HERD_REDIS_URL, 6379. 0: any free one."),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="FOLDER", help="Keep its data in this folder; absent: it is lost at the end."
    ),
]


def redis(
    port: Port = None,
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in one line.")] = False,
) -> None:
    """Run a Redis server on this machine until Ctrl-C.

    It says how to reach it. It is the redis-server or valkey-server on the PATH, else that of the extra
    `demo`. It has no password, and only this machine reaches it. Exit code 1 when the server ends by itself.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.cli.signals import on_signals
    from llama_herd.local.redis_server import own_redis
    from llama_herd.tasks.settings import Settings

    url = read_settings(Settings).redis_url
    asked = Event()
    with (
        own_redis(url, "herd redis", port=port, folder=folder) as server,
        on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda _: asked.set()),
    ):
        where = url if port is None else server.url
        if as_json:
            place = None if folder is None else str(folder.absolute())
            facts = {"url": where, "pid": server.pid, "version": server.version, "dir": place}
            print(json.dumps(facts), flush=True)
        else:
            kept = "is lost when it ends (--dir FOLDER keeps it)" if folder is None else f"stays in {folder}"
            show(f"export HERD_REDIS_URL={where}\n# its data {kept}; Ctrl-C ends it")
        while server.is_running and not asked.wait(0.1):
            pass
        has_died = not asked.is_set()
    if has_died:
        say(f"the Redis at {where} has ended by itself")
        raise typer.Exit(1)
