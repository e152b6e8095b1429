"""Bytes as people read them."""


def size_text(num_bytes: int) -> str:
    """A size in GB, MB or kB (powers of 1000), such as 1.2 GB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {unit}"
    return f"{num_bytes / 1e3:,.1f} kB"
