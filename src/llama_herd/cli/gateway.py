"""`herd gateway`: the door to the queue for clients of OpenAI's API."""

import logging
import os
from typing import Annotated

import typer

from llama_herd.cli.connection import may_come_back
from llama_herd.cli.terminal import say
from llama_herd.errors import RedisUnavailable
from llama_herd.extras import need_extra

#: A supervisor starts it again, unlike after wrong settings.
EXIT_REDIS_AWAY = 1

Port = Annotated[
    int | None, typer.Option(min=0, max=65_535, help="Port; absent: HERD_GATEWAY_PORT. 0: any free one.")
]
IsOpen = Annotated[
    bool,
    typer.Option("--open", help="Let everybody on this machine in without a key, as HERD_GATEWAY_OPEN."),
]


def gateway(
    host: Annotated[str | None, typer.Option(help="Address to listen at; absent: HERD_GATEWAY_HOST.")] = None,
    port: Port = None,
    is_open: IsOpen = False,
) -> None:
    """Serve OpenAI's API, and jobs with events, over the queue.

    It has no model, and no state but the files of batches: run as many as you like. Who calls needs a key
    (herd keys create). Exit code 1 when Redis is away at the start, and 2 when a setting is wrong.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.tasks.gateway.settings import GatewaySettings

    need_extra("gateway", "herd gateway")
    options = {"gateway_host": host, "gateway_port": port, "gateway_open": is_open or None}
    settings = read_settings(GatewaySettings, **options)

    from llama_herd.cli.gateway_collector import GatewayCollector
    from llama_herd.ops.exporter import Exporter
    from llama_herd.ops.log_handler import LogHandler
    from llama_herd.ops.settings import ServedSettings
    from llama_herd.ops.systemd import tell_systemd_ready
    from llama_herd.tasks.feeder.batch_execution import BatchCount
    from llama_herd.tasks.gateway.request_log import AnswerCount, JsonLogFormatter
    from llama_herd.tasks.gateway.serve import serve_gateway

    handler = LogHandler()
    handler.setFormatter(JsonLogFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    answers, batches = AnswerCount(), BatchCount()
    exporter = Exporter.start(ServedSettings.read())  # of the ledger it tells what a worker would tell
    if exporter is not None:
        exporter.show(GatewayCollector(answers, batches))
    try:
        serve_gateway(settings, answers, batches, on_start=tell_systemd_ready)
    except RedisUnavailable as error:
        if not may_come_back(error):
            raise
        say(str(error))
        raise typer.Exit(EXIT_REDIS_AWAY) from None
    # All is given back. Python would still wait for threads to which a storage gives no answer.
    logging.shutdown()
    os._exit(0)
