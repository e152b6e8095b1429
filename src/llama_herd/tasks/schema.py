"""JSON schemas of jobs and events, for other languages: `python -m llama_herd.tasks.schema docs/schemas`."""

import argparse
import json
from pathlib import Path
from typing import Any

from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import EVENT
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.ranking_job import RankingJob


def schemas() -> dict[str, dict[str, Any]]:
    """Each schema by the name of its file."""
    return {
        "job.json": GenerationJob.model_json_schema(),
        "embedding_job.json": EmbeddingJob.model_json_schema(),
        "ranking_job.json": RankingJob.model_json_schema(),
        "event.json": EVENT.json_schema(),
    }


def schema_text(schema: dict[str, Any]) -> str:
    """A schema as the text of its file."""
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def write_schemas(folder: Path) -> None:
    """Write all schemas into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas().items():
        (folder / name).write_text(schema_text(schema), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write job.json and event.json")
    write_schemas(parser.parse_args().folder)
