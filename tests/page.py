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


NAMED = ("button", "textbox", "spinbutton", "combobox", "radio", "link", "log")
NAMED_TOO = ("img", "image", "table", "searchbox", "checkbox", "region", "dialog")


def named(tab: Tab) -> list[tuple[str, str]]:
    """The roles and names of all that needs a name."""
    return [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tab.call("Accessibility.getFullAXTree")["nodes"]
        if not node["ignored"] and node["role"]["value"] in NAMED + NAMED_TOO
    ]


def unnamed(tab: Tab) -> list[str]:
    return [role for role, name in named(tab) if not name]


#: The contrast of each text that is seen with what is behind it, the lowest first.
CONTRAST = """
(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number)
  const light = ([r, g, b]) => [r, g, b].map(one => one / 255)
    .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0)
  const behind = one => {
    for (; one; one = one.parentElement) {
      const color = rgb(getComputedStyle(one).backgroundColor)
      if (color.length === 3) return color
    }
  }
  const found = []
  for (const one of document.querySelectorAll('body *')) {
    const isText = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim())
    if (!isText || !one.checkVisibility() || one.closest('.unseen, noscript')) continue
    const pair = [light(rgb(getComputedStyle(one).color)), light(behind(one))].sort((a, b) => b - a)
    found.push([(pair[0] + 0.05) / (pair[1] + 0.05), one.textContent.slice(0, 40)])
  }
  return found.sort((a, b) => a[0] - b[0])
})()
"""
