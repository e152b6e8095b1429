"""`herd kernels`: the native kernels that multiply quantised weights on a CPU."""

from typing import Annotated

import typer

from llama_herd.cli.terminal import say, show
from llama_herd.errors import BadInput
from llama_herd.extras import need_extra

kernels = typer.Typer(no_args_is_help=True, help="Native kernels, which multiply quantised weights on a CPU.")


@kernels.callback()
def _kernels() -> None: ...


@kernels.command("build")
def build_kernels(
    for_all: Annotated[
        bool, typer.Option("--all", help="For every processor, as an image needs, not this machine's alone.")
    ] = False,
) -> None:
    """Compile the kernels with g++ to where workers look for them.

    What is already there stays, if it is whole; what is damaged is removed, named on standard error, and
    compiled anew. Exit code 2 without a compiler, when it fails, and when others can change the folder:
    workers then run without kernels.
    """
    need_extra("worker", "herd kernels build")
    from llama_herd.cli.environment import read_settings
    from llama_herd.model.kernels.build import build, usable_sets
    from llama_herd.model.kernels.instruction_set import INSTRUCTION_SETS
    from llama_herd.worker.loading.kernels import kernels_folder
    from llama_herd.worker.settings import WorkerSettings

    try:
        sets = INSTRUCTION_SETS if for_all else usable_sets()[:1]
    except BadInput as error:
        show(f"no kernels: {error}; workers run without")
        return
    for library in build(kernels_folder(read_settings(WorkerSettings)), sets):
        for removed in library.removed:
            say(f"removed, {removed}")
        show(str(library.path))
