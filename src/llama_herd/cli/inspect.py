"""`herd inspect`: what is in a model file, and how much memory it would take to run it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.job_options import Engine, EngineUrl
from llama_herd.cli.terminal import harmless
from llama_herd.counted import counted
from llama_herd.errors import BadInput
from llama_herd.extras import need_extra
from llama_herd.model.hub.choice import size_text

if TYPE_CHECKING:
    from llama_herd.model.config import LlamaConfig
    from llama_herd.model.text.token_facts import TokenFacts
    from llama_herd.worker.foreign.server_summary import ServerSummary
    from llama_herd.worker.loading.model_summary import MemorySummary, ModelSummary, PurposeFact, TypeShare


def inspect(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="GGUF file, folder or hf:OWNER/NAME; absent: HERD_MODEL, else the bundled one, tales."
        ),
    ] = None,
    engine: Engine = None,
    engine_url: EngineUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a model file holds.

    Also shows how much memory a worker would need at the current settings. No weight is read. Any file can be
    looked at; of one that is not supported the headers are shown, and then why a worker refuses it. With
    --engine-url it shows what the server there is, and what it can do of a job. Exit
    code 2 when a worker could not serve the model on this machine with these settings.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.worker.loading.hub_model import with_model_here
    from llama_herd.worker.settings import WorkerSettings

    need_extra("worker", "herd inspect")
    settings = read_settings(WorkerSettings, model=model, engine=engine, engine_url=engine_url)
    if settings.is_foreign:
        from llama_herd.worker.foreign.server_summary import ServerSummary

        server = ServerSummary.from_settings(with_model_here(settings.as_foreign()))
        told = json.dumps(server.to_dict()) if as_json else "\n".join(server_lines(server))
        print(harmless(told), flush=True)
        return
    settings = with_model_here(settings)
    from llama_herd.worker.loading.model_summary import ModelSummary

    summary = ModelSummary.from_settings(settings)
    if as_json:
        print(json.dumps(summary.to_dict()), flush=True)  # before the complaint, also in a pipe
    elif summary.kind:
        print(harmless("\n".join(summary_lines(summary))), flush=True)
    if summary.complaint:
        raise BadInput(summary.complaint)


def summary_lines(summary: "ModelSummary") -> Iterator[str]:
    """A summary for a person."""
    total = summary.total
    yield summary.path
    yield summary.kind
    yield f"{total.num_parameters:,} parameters in {total.num_tensors} tensors, {size_text(total.num_bytes)}"
    yield from _section("purpose", _purpose_facts(summary.purpose))
    yield from _section("header", summary.header.items())
    yield from _section("shape", _shape_facts(summary.shape))
    yield from _section("tensors", _tensor_facts(summary.tensors))
    if summary.tokenizer is not None:
        yield from _section("tokenizer", _tokenizer_facts(summary.tokenizer))
    yield from _section("outputs", _format_facts(summary))
    if summary.memory is not None:
        yield from _section("memory of a worker at the current settings", _memory_facts(summary.memory))


def server_lines(server: "ServerSummary") -> Iterator[str]:
    """A server for a person."""
    facts = server.facts
    yield f"{server.engine} {facts.version}".rstrip() + f" at {server.url}"
    rows = "not told" if facts.num_rows is None else facts.num_rows
    compared = "the same as of HERD_MODEL" if server.is_compared else "not compared: it tells no ids"
    told = {
        "model": facts.model,
        "context": f"{facts.max_length:,} tokens",
        "rows at a time": rows,
        "tokenizer": compared,
        "forms of outputs": ", ".join(server.forms),
    }
    yield from _section("server", told.items())
    for how, title in _USES.items():
        uses = ((name, use.note) for name, use in server.fields.items() if use.how == how)
        yield from _section(title, uses)


#: What becomes of a field of a job.
_USES = {
    "passed": "fields of a job that it is told",
    "ours": "fields that the worker does, whatever computes",
    "refused": "fields that are refused, unless a job leaves them out",
}


def _section(title: str, facts: Iterable[tuple[str, object]]) -> Iterator[str]:
    """A section with a line for each fact; nothing without any."""
    lines = [(_one_line(name), _one_line(value)) for name, value in facts]
    width = max((len(name) for name, _ in lines), default=0)
    if lines:
        yield f"\n{title}"
    for name, value in lines:
        yield f"  {name:<{width}}  {value}".rstrip()


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


def _purpose_facts(purpose: "PurposeFact | None") -> Iterator[tuple[str, object]]:
    if purpose is None:
        return
    yield "what it does", purpose.sentence
    if purpose.width is not None:
        yield "numbers of a vector", f"{purpose.width:,}, or fewer by `dimensions`"
    for name, prompt in purpose.prompts.items():
        default = " (by default)" if name == purpose.default_prompt else ""
        yield f"prompt {name}{default}", repr(prompt)
    for warning in purpose.warnings:
        yield "warning", warning


def _shape_facts(shape: "LlamaConfig | None") -> Iterator[tuple[str, object]]:
    """The family, and every field that is not as in Llama 2."""
    if shape is None:
        return
    yield "family", shape.family.name
    for field in fields(shape):
        value = getattr(shape, field.name)
        if value == field.default or field.name == "family":
            continue
        if field.name == "rope_scaling":
            slowest = max(value.divisors, default=1.0)
            value = f"pairs up to {slowest:g} times slower, gain {value.gain:g}"
        elif field.name == "windows":
            value = f"of {max(value):,} tokens in {sum(map(bool, value))} of {len(value)} layers"
        yield field.name, value


def _tensor_facts(shares: "Iterable[TypeShare]") -> Iterator[tuple[str, str]]:
    for one in shares:
        size = size_text(one.num_bytes)
        yield one.type, f"{counted(one.num_tensors, 'tensor')}, {one.num_parameters:,} parameters, {size}"


def _tokenizer_facts(tokenizer: "TokenFacts") -> Iterator[tuple[str, object]]:
    yield "tokens", tokenizer.vocab_size
    yield "BOS", "none" if tokenizer.bos_id is None else tokenizer.bos_id
    yield "EOS", ", ".join(map(str, tokenizer.eos_ids)) or "none: a job runs to its max_tokens"
    yield "BOS before a prompt", "yes" if tokenizer.adds_bos else "no"
    if tokenizer.last_ids or (tokenizer.first_ids and tokenizer.first_ids != (tokenizer.bos_id,)):
        around = " ".join([*map(str, tokenizer.first_ids), "...", *map(str, tokenizer.last_ids)])
        yield "around a prompt", around
    chat = ", ".join(tokenizer.chat_templates) or "no: jobs with messages are refused"
    complaint = tokenizer.chat_complaint
    yield "forms of outputs", f"none that needs {tokenizer.lacks}" if tokenizer.lacks else "any"
    yield "chat template", f"jobs with messages are refused: {complaint}" if complaint else chat
    for warning in tokenizer.complaints:
        yield "warning", warning


def _format_facts(summary: "ModelSummary") -> Iterator[tuple[str, str]]:
    facts = {"calls of tools": summary.tool_format, "reasoning": summary.reasoning_format}
    for title, fact in facts.items():
        if fact is not None:
            yield title, f"{fact.name}, by {fact.source}" if fact.source else fact.name


def _memory_facts(memory: "MemorySummary") -> Iterator[tuple[str, object]]:
    yield "device", f"{memory.device}, {memory.dtype}"
    yield "form", f"weights {memory.weights}"
    yield "kernels", memory.kernels
    yield "longest sequence", f"{memory.max_length:,} tokens; {counted(memory.slots, 'slot')}"
    yield "KV a token", f"{memory.kv_bytes_per_token:,} bytes; {memory.kv_cache_tokens:,} tokens"
    for name, num_bytes in memory.parts.items():
        yield name, size_text(num_bytes)
    yield "in all", f"{size_text(memory.num_bytes)} at most, {size_text(memory.free_bytes)} free"
