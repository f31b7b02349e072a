"""`decodeloop certify`: proves a target lossless as far as it can be seen, and signs what was found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from typer.core import TyperGroup

from decodeloop.cli import flags
from decodeloop.cli.certify_run import certify_embedded, certify_endpoint, observed_regime, regime_of_settings
from decodeloop.cli.certify_session import Asked, Found, Watcher
from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import stderr
from decodeloop.cli.signing import SigningKey, require_cryptography, verify
from decodeloop.engine.models.sources import DEFAULT_MODEL
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.lossless.outcome import Verdict
from decodeloop.evaluation.lossless.sizes import FULL, QUICK, sized
from decodeloop.governance.certificate import DAYS, Certificate, differences, faults, issue, read

EXIT = {Verdict.YES: 0, Verdict.NO: 1, Verdict.INVALID: 3}
EXIT_INTERRUPTED = 130
EMBEDDED = "embedded"


class _Targets(TyperGroup):
    """`certify TARGET` beside `certify verify FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What doesn't begin with a command's name is about a target; options may stand before it."""
        named = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named or not args else ["target", *args])


app = typer.Typer(name="certify", cls=_Targets, no_args_is_help=True, help="Prove a target lossless: certify TARGET.")


@app.command("target")
def certify(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="embedded (an engine in this process) or a URL.")],
    plain: Annotated[
        str | None, typer.Option(help="The same model without speculation, at another URL; ours needs none.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="embedded: as for `serve`; a URL: which of its models.")] = None,
    workload: Annotated[Path | None, typer.Option(help="Prompts for token identity (JSON lines).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes less, and less power: it says how much.")] = False,
    samples: Annotated[
        int | None, typer.Option(min=50, help="Answers at temperature 1, of a prompt and mode: fewer, less power.")
    ] = None,
    at_once: Annotated[int | None, typer.Option(min=1, help="In company: as many as the target takes.")] = None,
    black: Annotated[bool, typer.Option("--black-box", help="Use nothing but texts.")] = False,
    declare: Annotated[
        list[str] | None, typer.Option(help="FIELD=VALUE of the regime that the target doesn't tell; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the certificate is written.")] = Path("certificate.json"),
    days: Annotated[int, typer.Option(min=1, help="How long it holds.")] = DAYS,
    key: Annotated[Path | None, typer.Option(help="Signing key; DECODELOOP_SIGNING_KEY else.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="DECODELOOP_API_KEY", help="For a URL.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an interrupted run collected.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
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
    """Certify TARGET. Exit 0: lossless as far as stated; 1: not; 3: the run proves nothing."""
    require_cryptography()
    environment = read_environment()
    signer = SigningKey.open(key or environment.signing_key)
    asked = Asked(
        environment=environment,
        model=model,
        workload=workload,
        sizes=sized(QUICK if quick else FULL, samples=samples, at_once=at_once),
        black=black,
        declared=_declared(declare or []),
        fresh=fresh,
    )
    if target == EMBEDDED:
        settings = flags.engine_settings(EngineSettings(), context.params)
        found = _watched(lambda watcher: certify_embedded(asked, model or DEFAULT_MODEL, settings, watcher))
    else:
        found = _watched(lambda watcher: certify_endpoint(asked, target, plain, api_key, watcher))
    made = _issued(found, asked, signer, days, out) if found.verdict is Verdict.YES else None
    _conclude(found, made, out)
    if as_json:
        print(orjson.dumps(_report(found, made, out)).decode())
    raise typer.Exit(EXIT[found.verdict])


def _watched(run: Callable[[Watcher], Found]) -> Found:
    with Watcher(stderr) as watcher:
        try:
            return run(watcher)
        except KeyboardInterrupt:
            stderr.print("interrupted; the same command goes on where it stopped")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _issued(found: Found, asked: Asked, signer: SigningKey, days: int, out: Path) -> Certificate:
    """Signed, and written to `out`."""
    made = issue(
        found.regime,
        declared=tuple(asked.declared),
        level=found.level,
        checks=[check.to_json() for check in found.checks],
        now=datetime.now(UTC),
        signer=signer,
        days=days,
    )
    out.write_bytes(orjson.dumps(made.to_json(), option=orjson.OPT_INDENT_2))
    return made


def _declared(pairs: Sequence[str]) -> dict[str, Any]:
    """Raises ValueError for what isn't FIELD=VALUE."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--declare {pair!r}: write FIELD=VALUE, such as weight_format=bf16")
        try:
            found[name] = orjson.loads(value)
        except orjson.JSONDecodeError:
            found[name] = value
    return found


def _conclude(found: Found, made: Certificate | None, out: Path) -> None:
    words = {
        Verdict.YES: "lossless, as far as the checks above reach",
        Verdict.NO: "NOT lossless",
        Verdict.INVALID: "the run proves nothing: " + found.why,
    }
    print(f"verdict: {found.verdict} ({words[found.verdict]}); {found.level} box")
    print(f"regime {found.regime.hash[:16]}: {found.regime.engine} {found.regime.version}, {found.regime.model}")
    if made is not None:
        print(f"certificate {made.hash[:16]}, signed by key {made.key_id}, until {made.expires_at}: {out}")


def _report(found: Found, made: Certificate | None, out: Path) -> dict[str, Any]:
    checks = found.checks
    return {
        "verdict": found.verdict,
        "level": found.level,
        "why": found.why,
        "negative_controls": [{"check": check.name, **asdict(c)} for check in checks for c in check.controls],
        "power": [{"check": check.name, **asdict(p)} for check in checks for p in check.power],
        "checks": [
            {"name": c.name, "claim": c.claim, "passed": c.passed, "found": c.found, "measured": dict(c.measured)}
            for c in checks
        ],
        "regime_hash": found.regime.hash,
        "certificate": None if made is None else {"path": str(out), "hash": made.hash, "key_id": made.key_id},
    }


@app.command("verify")
def verify_certificate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A certificate.")],
    target: Annotated[str | None, typer.Option(help="Compare the regime with this: embedded or a URL.")] = None,
    issuer: Annotated[list[str] | None, typer.Option(help="Key id that must have signed; repeatable.")] = None,
    model: Annotated[str | None, typer.Option(help="Of the target.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="DECODELOOP_API_KEY", help="For a URL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
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
    """Check a certificate's signature, hash, expiry, and regime. Exit 0: holds; 1: doesn't; 3: is no certificate."""
    require_cryptography()
    try:
        certificate, data = read(file.read_bytes())
    except ValueError as error:
        print(f"decodeloop: {file}: {error}", file=sys.stderr)
        raise typer.Exit(EXIT[Verdict.INVALID]) from None
    wrong = list(faults(certificate, data, now=datetime.now(UTC), verify=verify, issuers=issuer or ()))
    unseen: tuple[str, ...] = ()
    if target == EMBEDDED:
        settings = flags.engine_settings(EngineSettings(), context.params)
        running = regime_of_settings(read_environment(), model or DEFAULT_MODEL, settings)
        wrong += differences(certificate.regime, running)
    elif target is not None:
        running, unseen = observed_regime(target, api_key, model)
        wrong += differences(certificate.regime, running, ignore=unseen)
    _tell(certificate, wrong, unseen, target)
    verdict = Verdict.NO if wrong else Verdict.YES
    if as_json:
        told: Mapping[str, Any] = {
            "verdict": verdict,
            "faults": wrong,
            "not_compared": list(unseen),
            "hash": certificate.hash,
            "regime_hash": certificate.regime.hash,
            "level": certificate.level,
            "key_id": certificate.key_id,
            "expires_at": certificate.expires_at,
        }
        print(orjson.dumps(told).decode())
    raise typer.Exit(EXIT[verdict])


def _tell(certificate: Certificate, wrong: Sequence[str], unseen: Sequence[str], target: str | None) -> None:
    line: Callable[..., None] = print
    line(f"certificate {certificate.hash[:16]}, {certificate.level} box, signed by key {certificate.key_id}")
    line(f"regime {certificate.regime.hash[:16]}: {certificate.regime.engine}, {certificate.regime.model}")
    line(f"issued {certificate.issued_at}, until {certificate.expires_at}")
    for fault in wrong:
        line(f"FAULT: {fault}")
    if target is None:
        line("not compared with a running target: give --target")
    elif unseen:
        line(f"not told by the target, hence not compared: {', '.join(unseen)}")
    line("does not hold" if wrong else "holds")
