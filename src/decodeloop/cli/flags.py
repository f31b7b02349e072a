"""The engine's settings as command-line options, for every command that opens one.

A command lists those that it offers as parameters, and reads them all at once: `engine_settings(base, context.params)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

import typer

from decodeloop.engine.settings import EngineSettings

Runner = Annotated[str | None, typer.Option(help="auto, native or torch.")]
Dtype = Annotated[str | None, typer.Option(help="Weight format; auto: the runner's own choice.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="0: all the cores this process may use.")]
Policy = Annotated[str | None, typer.Option(help="off, fixed, reference, adaptive, throughput or interactive.")]
Verifier = Annotated[str | None, typer.Option(help="coupled, rejection or block.")]
Drafters = Annotated[str | None, typer.Option("--drafters", help="Comma-separated, preferred first: ngram,suffix,...")]
DraftModel = Annotated[str | None, typer.Option(help="For draft_model: layers:N, int4, int4:layers:N or a path.")]
DraftLen = Annotated[int | None, typer.Option(help="Tokens that the policies fixed and reference draft.")]
MaxContext = Annotated[int | None, typer.Option(help="Longest prompt plus answer, in tokens.")]
MaxSequences = Annotated[int | None, typer.Option(help="Sequences that decode at once.")]
KvMemory = Annotated[int | None, typer.Option("--kv-memory-mb", help="For the target's KV cache.")]

WITHOUT_LENGTH = ("off", "adaptive", "throughput", "interactive")


def engine_settings(base: EngineSettings, params: Mapping[str, Any]) -> EngineSettings:
    """`base` with those of a command's parameters that are settings of the engine and were given.

    `drafters` is a comma-separated list; `draft_model` a spec. Raises ValueError, as the settings themselves do.
    """
    names = {field.name for field in fields(EngineSettings)}
    changes = {name: value for name, value in params.items() if name in names and value is not None}
    if "drafters" in changes:
        changes["drafters"] = tuple(name.strip() for name in changes["drafters"].split(",") if name.strip())
    spec = params.get("draft_model")
    if spec is not None:
        options = dict(base.drafter_options.get("draft_model", {}), model=spec)
        changes["drafter_options"] = {**base.drafter_options, "draft_model": options}
        listed = changes.get("drafters", base.drafters)
        changes["drafters"] = listed if "draft_model" in listed else ("draft_model", *listed)
    if "draft_len" in changes:
        policy = changes.get("policy", base.policy)
        if policy in WITHOUT_LENGTH:
            raise ValueError(f"draft_len has no effect on the policy {policy}: it is for fixed and reference")
        changes["max_draft_len"] = max(changes["draft_len"], base.max_draft_len)
    return replace(base, **changes)
