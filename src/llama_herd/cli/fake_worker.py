"""`herd fake-worker`: workers without a model, whose answers are scripted."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.connection import check_redis
from llama_herd.cli.terminal import say
from llama_herd.errors import BadInput
from llama_herd.extras import need_extra

if TYPE_CHECKING:
    from llama_herd.testing.script import Script


Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", help="Name of a model to stand for; may be given again."),
]
Answers = Annotated[
    list[str] | None,
    typer.Option("--answer", metavar="TEXT", help="What jobs are answered, in turn; the last one stays."),
]
ScriptFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A .toml or .py file that says which job gets which answer."),
]
TokensPerS = Annotated[
    float, typer.Option(min=0, help="Pace of answers without --script; 0: as fast as can be.")
]
WithRedis = Annotated[
    bool, typer.Option("--with-redis", help="Also start a Redis. Its data is lost at the end.")
]


def fake_worker(
    models: Models = None,
    answers: Answers = None,
    script: ScriptFile = None,
    tokens_per_s: TokensPerS = 0.0,
    with_redis: WithRedis = False,
) -> None:
    """Answer the jobs of models, for tests of services.

    It needs neither torch nor a model. Without --answer and --script a job gets what it asks for: an instance
    of its schema, a call of its tool, else a sentence. All else is as with a real worker, but no metrics are
    served. One that a script lets die is started again.
    """
    need_extra("testing", "herd fake-worker")
    if script is not None and (answers or tokens_per_s):
        raise BadInput("--script says all answers and paces. Fix: leave out --answer and --tokens-per-s")
    from llama_herd.cli.environment import override_settings, read_settings
    from llama_herd.local.redis_server import own_redis
    from llama_herd.ops.settings import BUNDLED_MODEL
    from llama_herd.tasks.settings import MODEL_PATTERN
    from llama_herd.testing.script import Script
    from llama_herd.worker.settings import WorkerSettings

    for name in models or ():
        if re.fullmatch(MODEL_PATTERN, name) is None:
            raise BadInput(f"--model {name}: must be 1 to 128 letters, digits, dots, underscores or dashes")
    settings = read_settings(WorkerSettings)
    if settings.metrics_port:
        say("a fake worker serves no metrics, HERD_METRICS_PORT is ignored")
    override_settings(device="cpu", model=BUNDLED_MODEL, metrics_port=0)  # none is used, but all are read
    said = Script.load(script) if script is not None else _one_rule(answers or (), tokens_per_s)
    with own_redis(settings.redis_url, "--with-redis") if with_redis else nullcontext():
        check_redis(settings)
        from llama_herd.testing.fake_worker import run_fake_workers  # reads the settings of the environment

        # It may run for days, and nobody asks which jobs came.
        code = run_fake_workers(models or [settings.served_model], said.answer_for)
    raise typer.Exit(code)


def _one_rule(texts: Sequence[str], tokens_per_s: float) -> "Script":
    """A script for all jobs alike."""
    from llama_herd.testing.answer import Answer
    from llama_herd.testing.script import Script

    script = Script()
    script.answer(*(Answer(text=text, tokens_per_s=tokens_per_s) for text in texts or (None,)))
    return script
