"""`herd pull`: a model of Hugging Face, into the cache that other tools share."""

from typing import Annotated

import typer

from llama_herd.cli.terminal import say, show
from llama_herd.extras import need_extra
from llama_herd.model.hub.name import HubName

Name = Annotated[
    str, typer.Argument(help="OWNER/NAME, with :FILE.gguf or a type such as :Q4_K_M behind it if wanted.")
]


def pull(name: Name) -> None:
    """Fetch a model from Hugging Face, or what is new of it.

    Without a file or a type it takes the GGUF file that suits this machine's memory; a repository without
    GGUF files comes as a folder. A download that broke off goes on where it was. Prints the path.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.worker.loading.hub_model import fetch_with_bar
    from llama_herd.worker.settings import WorkerSettings

    need_extra("hub", "herd pull")
    wanted = HubName.parse(name)
    found = fetch_with_bar(wanted, read_settings(WorkerSettings))
    if not found.is_new:
        say(f"it was there already: {found.choice.why}")
    show(str(found.path))
    say(f"serve it by herd worker --model hf:{wanted}")
