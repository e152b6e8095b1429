"""What tests of the page share."""

from collections.abc import Callable

from tests.browser import Tab

#: Tokens of a job that is there as long as a test needs it, and is stopped then. The context is longer.
LONG, CONTEXT = 30_000, 32_768

#: Opens the page, and returns its tab.
Open = Callable[..., Tab]
