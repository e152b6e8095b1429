"""Name the repository in what an index shows of a release: its addresses, and the README's links.

    python .github/name_repository.py https://host/owner/name v0.1.0

It changes `pyproject.toml` and `README.md` where it runs, which is the checkout that a release is built from.
"""

import re
import sys
from pathlib import Path


def addresses(repository: str, tag: str) -> str:
    """The table that `pyproject.toml` lacks, since a copy of the repository has other addresses."""
    return f"""
[project.urls]
Homepage = "{repository}"
Documentation = "{repository}/blob/{tag}/docs/operate.md"
Changelog = "{repository}/blob/{tag}/CHANGELOG.md"
Issues = "{repository}/issues"
"""


def with_absolute_links(readme: str, repository: str, tag: str) -> str:
    """The README with links that lead into the repository: an index has none of its files."""
    shown = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{repository}/raw/{tag}/", readme)
    return re.sub(r"(?<!!)(\[[^]!]*\]\()(?!https?:|#)", rf"\1{repository}/blob/{tag}/", shown)


def main(repository: str, tag: str) -> None:
    """Raises ValueError where the tag is not the version's, or the addresses are there already."""
    project, readme = Path("pyproject.toml"), Path("README.md")
    text = project.read_text()
    if f'\nversion = "{tag.removeprefix("v")}"\n' not in text:
        raise ValueError(f"{project} has another version than {tag}. Fix: tag the version that stands there")
    if "[project.urls]" in text:
        raise ValueError(f"{project} names its addresses. Fix: run this once, in a fresh checkout")
    project.write_text(text + addresses(repository, tag))
    readme.write_text(with_absolute_links(readme.read_text(), repository, tag))


if __name__ == "__main__":
    main(*sys.argv[1:])
