"""The place of an unexpected exception, which the log may name."""

import traceback


def error_place(error: BaseException) -> str:
    """The exception's type and place in the code, not its message, which may quote a prompt."""
    places = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{place.filename}:{place.lineno}" for place in reversed(places))
    return f"{type(error).__name__} at {where}"
