"""Checks objects for Kubernetes by the schemas of their kinds: `python -m tests.deploy.schemas FOLDER`."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from pydantic import BaseModel

#: The oldest Kubernetes that the objects are for.
KUBERNETES = "1.32"

#: Modules of classes made of the definitions (CRDs) of KEDA and of the Prometheus Operator.
DEFINITIONS = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}

#: What is told of an object: a dictionary as YAML has it.
Manifest = dict[str, Any]


def manifests(folder: Path) -> dict[Path, Manifest]:
    """The objects of a folder, each in a file of its own; what only kustomize reads is left out."""
    read = {path: yaml.safe_load(path.read_text("utf-8")) for path in sorted(folder.rglob("*.yaml"))}
    return {path: one for path, one in read.items() if one["kind"] not in ("Kustomization", "Component")}


def complaint(manifest: Manifest) -> str:
    """What is wrong with an object; empty if nothing is."""
    version, kind = manifest["apiVersion"], manifest["kind"]
    try:
        if version not in DEFINITIONS:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
            return ""
        error = _error_of_custom(manifest, getattr(import_module(DEFINITIONS[version]), kind))
    except ValidationError as found:
        error = found
    except (AttributeError, kubernetes_validate.SchemaNotFoundError):
        return f"nothing is known of {version}, {kind}"
    return f"{error.json_path}: {error.message}" if error else ""


def _error_of_custom(manifest: Manifest, kind: type[BaseModel]) -> ValidationError | None:
    validator = Draft202012Validator(_strict(kind.model_json_schema()))
    return best_match(validator.iter_errors(manifest))


def _strict(schema: Any) -> Any:
    """The schema, but no object has fields that it does not name."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if schema.get("properties") else {}
    return {**closed, **{name: _strict(one) for name, one in schema.items()}}


def complaints(folder: Path) -> Iterator[str]:
    """What is wrong with the objects of a folder, each with its file."""
    for path, manifest in manifests(folder).items():
        if found := complaint(manifest):
            yield f"{path}: {found}"


if __name__ == "__main__":
    found = list(complaints(Path(sys.argv[1])))
    print("\n".join(found), end="\n" * bool(found))
    sys.exit(bool(found))
