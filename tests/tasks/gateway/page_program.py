"""Programs in Node with the modules of the gateway's page, and a little document for a browser's."""

import json
import subprocess
from pathlib import Path
from typing import Any

from llama_herd.tasks import gateway as package

FOLDER = Path(package.__path__[0]) / "page"
DOM = Path(__file__).parent / "little_dom.mjs"


def run_page_program(program: str, url: str, key: str, **given: object) -> Any:
    """What a program tells as JSON. It reads `dom`, `url`, `key` and the given from its standard input."""
    done = subprocess.run(
        ["node", "--input-type=module", "-e", program],
        input=json.dumps({"dom": DOM.as_uri(), "url": f"{url}/", "key": key, **given}),
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
