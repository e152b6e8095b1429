"""A real Chromium for tests of the page, spoken to over a pipe by its DevTools protocol."""

import base64
import json
import os
import shutil
import subprocess
from collections import deque
from pathlib import Path
from select import select
from time import monotonic
from types import TracebackType
from typing import Any, Self

from llama_herd.local.redis_server import END_WITH_PARENT
from tests.chaos.harness.patience import PATIENCE_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")

#: Keys by the names that tests say: DevTools' key, code, number and text.
KEYS: dict[str, tuple[str, int, str]] = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    "Space": ("Space", 32, " "),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
}
SHIFT, CTRL = 8, 2

#: What Chromium says of a call to a page that is loaded again, or left, before the answer.
_GONE = (
    "Inspected target navigated or closed",
    "Execution context was destroyed.",
    "Cannot find context with specified id",
    "Cannot find default execution context",
    "Promise was collected",
)

#: The middle of an element once it is what a mouse meets there: it is shown, and nothing lies over it.
_MIDDLE = """(element => {
  element?.scrollIntoView({block: 'nearest'})
  const box = element?.getBoundingClientRect()
  const middle = box && [box.x + box.width / 2, box.y + box.height / 2]
  return element?.contains(document.elementFromPoint(...middle)) && middle
})"""

#: Calls a function again and again for half a second, until its answer is true.
_LOOK = """async look => {
  const end = Date.now() + 500
  for (;;) {
    const value = look()
    if (value || Date.now() > end) return value instanceof Node ? true : value
    await new Promise(done => setTimeout(done, 10))
  }
}"""


def find_chromium() -> str | None:
    """The path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One Chromium process without a window; its profile is a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        to_read, self._to_browser = os.pipe()
        self._from_browser, to_write = os.pipe()
        path = find_chromium()
        assert path is not None
        flags = [
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--mute-audio",
        ]
        flags += ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
        # It reads at 3 and writes at 4, whatever numbers the pipes have here.
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, path, *flags, f"--user-data-dir={self._folder}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=END_WITH_PARENT,
        )
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._rest = b""
        self._messages: deque[dict[str, Any]] = deque()
        self.tabs: dict[str, Tab] = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to_browser)
        os.close(self._from_browser)

    def open(self, url: str, **size: Any) -> "Tab":
        """A new tab, with nothing kept from others."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self.tabs[session] = Tab(self, session, target)
        tab.begin(url, **size)
        return tab

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Call a method and wait for its answer; events that come meanwhile go to their tabs."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        until_s = monotonic() + PATIENCE_S
        while True:
            found = self._next(until_s)
            if found.get("id") == number:
                if "error" in found:
                    raise CallRefused(f"{method}: {found['error']['message']}")
                result: dict[str, Any] = found["result"]
                return result
            tab = self.tabs.get(found.get("sessionId", ""))
            if tab is not None and "method" in found:
                tab.note(found["method"], found["params"])

    def _next(self, until_s: float) -> dict[str, Any]:
        while not self._messages:
            ready, _, _ = select([self._from_browser], [], [], max(0.0, until_s - monotonic()))
            assert ready, "Chromium does not answer"
            part = os.read(self._from_browser, 1 << 20)
            assert part, "Chromium has ended"
            *whole, self._rest = (self._rest + part).split(b"\0")
            self._messages.extend(map(json.loads, whole))
        return self._messages.popleft()


class CallRefused(AssertionError):
    """Chromium has refused a call of DevTools."""


class Tab:
    """A page in the browser.

    complaints: its errors, and what its policy has blocked. urls: all that it asked for.
    """

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.complaints: list[str] = []
        self.urls: list[str] = []

    def begin(self, url: str, *, width: int = 1280, height: int = 800, **media: str) -> None:
        """media: features of CSS such as prefers_color_scheme='dark'."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.go(url)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def note(self, method: str, parameters: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description") or details["text"])
            case "Log.entryAdded" if parameters["entry"]["source"] != "network":
                self.complaints.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.urls.append(parameters["request"]["url"])

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("location.protocol !== 'about:' && document.readyState === 'complete'")

    def reload(self) -> None:
        self.run("window.isOld = true")
        self.call("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def close(self) -> None:
        del self._browser.tabs[self._session]
        self._browser.call("Target.closeTarget", targetId=self._target)

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        found = self._evaluate(code)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, code: str, patience_s: float = PATIENCE_S) -> Any:
        """The value of an expression once it is true, also if the page is loaded again meanwhile."""
        until_s = monotonic() + patience_s
        while monotonic() < until_s:
            try:
                found = self._evaluate(f"({_LOOK})(() => ({code}))")
            except CallRefused as error:
                if not str(error).endswith(_GONE):
                    raise
            else:
                if value := found["result"].get("value"):
                    return value
        raise AssertionError(f"not true within {patience_s} s: {code}\n{self.run('document.body.innerText')}")

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key of KEYS."""
        code, number, text = KEYS[key]
        same: dict[str, Any] = {"key": text if key == "Space" else code, "code": code, "modifiers": modifiers}
        same["windowsVirtualKeyCode"] = number
        typed = {"text": text} if text and not modifiers & CTRL else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **same, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Click into the middle of an element, as a mouse does, once it can be clicked."""
        x, y = self.wait(f"{_MIDDLE}(document.querySelector({json.dumps(selector)}))")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def shoot(self, path: Path) -> None:
        """A picture of what is seen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _evaluate(self, code: str) -> dict[str, Any]:
        return self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
