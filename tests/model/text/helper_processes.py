"""The processes that render this one's chats."""

import psutil


def helpers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "llama_herd.model.text.sandbox" in " ".join(child.cmdline())]
