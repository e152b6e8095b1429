"""What may be said of an exception that nobody expected."""

import traceback


def place_of(error: BaseException) -> str:
    """Its kind and its place, not its words, which may be a prompt's."""
    places = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{place.filename}:{place.lineno}" for place in reversed(places))
    return f"{type(error).__name__} at {where}"
