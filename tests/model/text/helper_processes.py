"""The processes that help this one."""

import psutil


def helpers(program: str = "llama_herd.model.text.sandbox") -> list[psutil.Process]:
    """Those that run this program; by default those that render chats."""
    children = psutil.Process().children()
    return [child for child in children if program in " ".join(child.cmdline())]
