"""Numbers of things in what people read."""


def counted(number: int, noun: str) -> str:
    """So many of what has a regular plural: `1 job`, `2,000 jobs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
