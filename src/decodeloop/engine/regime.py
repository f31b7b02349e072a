"""The serving regime of an engine in this process: what a certificate of it is about."""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from decodeloop import __version__
from decodeloop.engine.build import EmbeddedEngine
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.settings import EngineSettings
from decodeloop.engine.text import Tokenizer
from decodeloop.governance.certificate import Regime, digest

OWN_FIELDS = ("runner", "dtype", "threads", "verifier", "drafters", "policy")  # of the regime itself
PROBES = ("Hello, world!", "  two  spaces\n\tand a tab", "1234567890", "ěščřžýáíé 日本語 🙂", "def f(x):\n    return x")


def read_regime(engine: EmbeddedEngine, settings: EngineSettings) -> Regime:
    """settings: those that the engine was built with. Reads the model's file once: about a second a GB."""
    checkpoint, runner = engine.checkpoint, engine.engine.runner
    info, hardware = runner.info, read_hardware()
    template = checkpoint.chat_template
    return Regime(
        engine=f"decodeloop {info.name}",
        version=__version__,
        model=checkpoint.name,
        model_hash=checkpoint.sha256,
        drafter=",".join(engine.engine.proposers.names),
        drafter_hash=_drafter_hash(settings),
        tokenizer_hash=tokenizer_hash(checkpoint.tokenizer),
        template_hash="" if template is None else sha256(template.encode()).hexdigest(),
        weight_format=info.weight_format,
        isa=str(getattr(runner, "isa", "")) or "+".join(hardware.isa) or hardware.architecture,
        threads=int(getattr(runner, "threads", 0)) or settings.threads or hardware.threads,
        numerics="batch-invariant" if info.batch_invariant else "ordinary",
        verifier=settings.verifier,
        policy=settings.policy,
        policy_version=__version__,
        flags=_flags(settings),
    )


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Of every token's bytes, the ending ids, and how a few texts are cut."""
    found = sha256()
    for token in range(tokenizer.vocab_size):
        piece = tokenizer.token_bytes(token)
        found.update(len(piece).to_bytes(4, "little") + piece + bytes([tokenizer.is_special(token)]))
    cuts = [tokenizer.encode(text) for text in PROBES]
    found.update(json.dumps([sorted(tokenizer.eos_ids), tokenizer.bos_id, tokenizer.add_bos, cuts]).encode())
    return found.hexdigest()


def _drafter_hash(settings: EngineSettings) -> str:
    """Of the drafters' options, and of a draft model's own file where it has one."""
    options = {name: dict(settings.drafter_options.get(name, {})) for name in settings.drafters}
    spec = Path(str(options.get("draft_model", {}).get("model", "")))
    files = [open_checkpoint(spec).sha256] if spec.name and spec.exists() else []
    return digest([options, files])


def _flags(settings: EngineSettings) -> dict[str, object]:
    """What isn't the default, in JSON's own types."""
    usual = asdict(EngineSettings())
    changed = {name: value for name, value in asdict(settings).items() if value != usual[name]}
    plain: dict[str, object] = json.loads(json.dumps({k: v for k, v in changed.items() if k not in OWN_FIELDS}))
    return plain
