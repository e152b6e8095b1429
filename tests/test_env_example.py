"""`.env.example` and the settings say the same."""

import re
from pathlib import Path

import pytest
from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.settings_files import secret_variables
from llama_herd.worker.settings import WorkerSettings

ROOT = Path(__file__).parent.parent
EXAMPLE = (ROOT / ".env.example").read_text()


def variable(name: str, field: FieldInfo) -> str:
    """The environment variable of a setting; the first one where there are several."""
    alias = field.validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"HERD_{name.upper()}"


VARIABLES = {
    variable(name, field): field
    for kind in (WorkerSettings, GatewaySettings)
    for name, field in kind.model_fields.items()
}


def test_it_names_every_setting_once_and_no_other() -> None:
    named = re.findall(r"^#?(HERD_\w+)=", EXAMPLE, re.MULTILINE)
    assert sorted(named) == sorted(VARIABLES)


def test_its_values_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the model's path counts from here
    for name in ("HERD_REDIS_URL", "CELERY_BROKER_URL", "REDIS_URL", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    filled_in = tmp_path / ".env"
    filled_in.write_text(re.sub(r"^#(?=\w+=)", "", EXAMPLE, flags=re.MULTILINE))
    read = WorkerSettings(_env_file=filled_in)
    default = WorkerSettings(_env_file=None)
    assert read.model_copy(update={"model": read.model.resolve()}) == default
    assert GatewaySettings(_env_file=filled_in) == GatewaySettings(_env_file=None)


@pytest.mark.parametrize(("name", "field"), VARIABLES.items())
def test_the_comment_above_a_setting_is_its_description(name: str, field: FieldInfo) -> None:
    above = re.search(rf"((?:^# .*\n)+)#{name}=", EXAMPLE, re.MULTILINE)
    assert above, f"no comment above {name}"
    assert str(field.description) in above[1]


@pytest.mark.parametrize("kind", [WorkerSettings, GatewaySettings])
def test_a_secret_says_which_variable_names_its_file(kind: type[BaseSettings]) -> None:
    assert [name for name in secret_variables(kind) if name not in EXAMPLE] == []


def test_only_compose_reads_the_other_variables() -> None:
    compose = "".join(path.read_text() for path in ROOT.glob("docker-compose*.yml"))
    in_compose = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", compose))
    in_example = dict(re.findall(r"^#((?!HERD_)\w+)=(.*)$", EXAMPLE, re.MULTILINE))
    assert in_example == in_compose
