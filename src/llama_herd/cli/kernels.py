"""`herd kernels`: the native kernels that multiply quantised weights on a CPU."""

import sys

import typer

kernels = typer.Typer(no_args_is_help=True, help="Native kernels, which multiply quantised weights on a CPU.")


@kernels.callback()
def _kernels() -> None: ...


@kernels.command("build")
def build_kernels() -> None:
    """Compile the kernels with g++ into the folder where workers look for them.

    For every instruction set, whatever this machine has. What is already there stays, if it is whole; what is
    damaged is removed, named on standard error, and compiled anew. Exit code 2 without a compiler, when it
    fails, and when others can change the folder: workers then run without kernels.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.model.kernels.build import build
    from llama_herd.model.kernels.instruction_set import is_known_machine
    from llama_herd.worker.loading.kernels import kernels_folder
    from llama_herd.worker.settings import WorkerSettings

    if not is_known_machine():
        print("there are no kernels for this kind of machine, workers run without")
        return
    for library in build(kernels_folder(read_settings(WorkerSettings))):
        for removed in library.removed:
            print(f"herd: removed, {removed}", file=sys.stderr)
        print(library.path)
