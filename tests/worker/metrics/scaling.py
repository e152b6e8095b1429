"""The query of docs/operate.md that says how many jobs a model's workers are wanted for."""

import re
from pathlib import Path

_PAGE = (Path(__file__).parents[3] / "docs/operate.md").read_text(encoding="utf-8")
_INDENTED = re.findall(r"(?:^    .+\n)+", _PAGE, re.MULTILINE)

(SCALER,) = (" ".join(text.split()) for text in _INDENTED if "herd_queue_due_jobs" in text)
