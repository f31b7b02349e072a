"""`decodeloop serve`: a gateway with one embedded engine."""

from __future__ import annotations

import hashlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from decodeloop import config
from decodeloop.cli import flags
from decodeloop.cli.classes import open_classifier
from decodeloop.cli.costs import measured_costs
from decodeloop.cli.environment import Environment, read_environment
from decodeloop.cli.opening import open_model, provenance, short_name, stderr
from decodeloop.cli.pool_certificates import read_certificates
from decodeloop.cli.reloading import ConfigFile, read_config
from decodeloop.cli.telemetry import TelemetrySettings, open_observer
from decodeloop.engine.build import EmbeddedEngine, build_engine
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.models.sources import DEFAULT_MODEL
from decodeloop.engine.recorder import StepRecorder
from decodeloop.engine.regime import read_regime
from decodeloop.engine.settings import EngineSettings
from decodeloop.engine.upstream import EmbeddedUpstream
from decodeloop.gateway.app import build_app
from decodeloop.gateway.governance import Governance, build_governance
from decodeloop.gateway.server import bind
from decodeloop.gateway.server import serve as serve_gateway
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.upstreams import Upstream
from decodeloop.governance.settings import CaptureSettings, GovernanceSettings
from decodeloop.policy.routing import route

EMBEDDED = "embedded"  # what pools call the engine in this process


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What `serve --config` reads."""

    model: str | None = DEFAULT_MODEL  # None: nothing is embedded, all upstreams are elsewhere
    served_model_name: str | None = None  # None: the model's own short name
    engine: EngineSettings = EngineSettings()
    gateway: GatewaySettings = GatewaySettings()
    governance: GovernanceSettings = GovernanceSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    record: str | None = None


def serve(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="A GGUF file, a Hugging Face directory, a hub name, or a name.")
    ] = None,
    config_file: Annotated[Path | None, typer.Option("--config", help="YAML; options given here override it.")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="What requests call it.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen at.")] = None,
    port: Annotated[int | None, typer.Option(help="0: any free one.")] = None,
    record: Annotated[str | None, typer.Option(help="Write a record of every step to this file (JSON lines).")] = None,
    runner: flags.Runner = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    threads: flags.Threads = None,
    policy: flags.Policy = None,
    verifier: flags.Verifier = None,
    drafters: flags.Drafters = None,
    draft_model: flags.DraftModel = None,
    draft_len: flags.DraftLen = None,
    max_context: flags.MaxContext = None,
    max_sequences: flags.MaxSequences = None,
    kv_memory_mb: flags.KvMemory = None,
) -> None:
    """Serve MODEL over an OpenAI-compatible API."""
    environment = read_environment()
    settings = ServeConfig() if config_file is None else read_config(config_file, ServeConfig, environment)
    address: dict[str, Any] = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = replace(
        settings,
        model=model or settings.model,
        served_model_name=served_model_name or settings.served_model_name,
        engine=flags.engine_settings(settings.engine, context.params),
        gateway=replace(settings.gateway, **address),
        record=record or settings.record,
    )
    _serve(settings, environment, _governance(settings, config_file, environment))


def _governance(settings: ServeConfig, path: Path | None, environment: Environment) -> Governance | None:
    """None: everyone may do everything, and nothing is recorded."""
    if not settings.governance.store:
        return None
    file = None if path is None else ConfigFile(path, ServeConfig, environment)

    def reload() -> GovernanceSettings | None:
        changed = None if file is None else file.changed()
        return None if changed is None else changed.governance

    redact = _redaction(settings.governance.captures)
    return build_governance(settings.governance, clock=time.time, reload=reload, redact=redact)


def _redaction(settings: CaptureSettings) -> Callable[[Any], Any] | None:
    """Placeholders are numbered anew in every request: nobody keeps what was taken out.

    Raises ConfigError for a pattern that is none.
    """
    if settings.directory is None:
        return None
    from decodeloop.evaluation.workloads.redaction import PATTERNS, Redactor

    patterns = {**settings.patterns, **PATTERNS}
    try:
        Redactor(patterns)
    except ValueError as error:
        raise config.ConfigError(f"governance.captures: {error}") from None
    return lambda value: Redactor(patterns).value(value)


def _serve(settings: ServeConfig, environment: Environment, governance: Governance | None) -> None:
    logging.getLogger("decodeloop").setLevel(logging.INFO)
    with bind(settings.gateway.host, settings.gateway.port) as bound:  # first: loading a model takes longer
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, _stop)  # the server raises it again once it has drained
        if settings.model is None:
            _listen(settings, {}, bound, governance)
            return
        checkpoint = open_model(settings.model, environment)
        recorder = _recorder(settings, checkpoint)
        try:
            engine = build_engine(
                checkpoint,
                settings.engine,
                clock=time.monotonic,
                name=settings.served_model_name or short_name(settings.model),
                measure=measured_costs(checkpoint, settings.engine, environment),
                recorder=recorder,
            )
            upstream = EmbeddedUpstream(
                engine,
                created=int(checkpoint.path.stat().st_mtime),
                regime=partial(read_regime, engine, settings.engine),
            )
            _greet(settings, engine, bound.getsockname()[1])
            _listen(settings, {EMBEDDED: upstream}, bound, governance)
        finally:
            if recorder is not None:
                recorder.close()


def _listen(
    settings: ServeConfig, upstreams: Mapping[str, Upstream], bound: socket.socket, governance: Governance | None
) -> None:
    gateway = settings.gateway
    for name, upstream in gateway.upstreams.items():
        stderr.print(f"upstream {name}: {upstream.engine} at {upstream.url}", highlight=False, soft_wrap=True)
    observer, close = open_observer(settings.telemetry)
    try:
        app = build_app(
            gateway,
            upstreams,
            route=route,
            classify=open_classifier(),
            observer=observer,
            governance=governance,
            certificates=read_certificates(gateway.pools),
        )
        serve_gateway(app, gateway, bound)
    finally:
        close()


def _stop(*_: object) -> None:
    raise SystemExit(0)


def _recorder(settings: ServeConfig, checkpoint: Checkpoint) -> StepRecorder | None:
    if settings.record is None:
        return None
    settings_hash = hashlib.sha256(msgspec.json.encode(settings.engine)).hexdigest()
    recorder = StepRecorder(Path(settings.record), provenance(checkpoint, read_hardware().device, settings_hash))
    recorder.start()
    return recorder


def _greet(settings: ServeConfig, engine: EmbeddedEngine, port: int) -> None:
    info, memory = engine.engine.runner.info, engine.memory
    host = f"[{settings.gateway.host}]" if ":" in settings.gateway.host else settings.gateway.host
    stderr.print(
        f"{engine.name} on {info.name} ({info.weight_format}), context {memory.max_context}, "
        f"KV pool {memory.kv_bytes >> 20} MiB, verifier {settings.engine.verifier}, policy {settings.engine.policy}, "
        f"drafters {', '.join(engine.engine.proposers.names) or 'none'}",
        highlight=False,
        soft_wrap=True,
    )
    chat = engine.checkpoint.chat_template is not None
    body = (
        '{"messages":[{"role":"user","content":"Say hello."}],"stream":true}'
        if chat
        else '{"prompt":"Once","stream":true}'
    )
    route = "chat/completions" if chat else "completions"
    stderr.print(
        f"try: curl -N http://{host}:{port}/v1/{route} -H 'content-type: application/json' -d '{body}'",
        highlight=False,
        soft_wrap=True,
    )
