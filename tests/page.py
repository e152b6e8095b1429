"""What people do on the gateway's page, in a few words."""

import pytest

from tests.browser import CTRL, Tab, find_chromium

needs_chromium = pytest.mark.skipif(not find_chromium(), reason="no chromium")


def ask(tab: Tab, prompt: str, max_tokens: int, model: str = "endless") -> str:
    """Write a prompt and send it; the id of its job."""
    tab.wait(f"document.querySelector('option[value={model}]')")
    tab.run(f"document.querySelector('[name=model]').value = '{model}'")
    tab.run(f"document.querySelector('[name=max_tokens]').value = {max_tokens}")
    tab.click("#prompt")
    tab.run("document.querySelector('#prompt').select()")
    tab.type(prompt)
    num_turns = tab.run("document.querySelectorAll('.turn').length")
    tab.press("Enter", CTRL)
    tab.wait(f"document.querySelectorAll('.turn').length > {num_turns}")
    return job_of(tab)


def job_of(tab: Tab) -> str:
    """The job that the address names."""
    return str(tab.run("location.hash.slice('#job='.length)"))


def said(num_chars: int) -> str:
    """Whether the last answer is so long."""
    return f"document.querySelector('.turn:last-child .said')?.textContent.length > {num_chars}"


def state(words: str) -> str:
    """Whether the last turn's state has these words."""
    return f"document.querySelector('.turn:last-child .state')?.textContent.includes('{words}')"


is_over = "document.querySelector('.turn:last-child .answers')?.getAttribute('aria-busy') === 'false'"
