"""What a pool's answers are against its target's own: from what its servers tell of themselves, and a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from decodeloop.governance.certificate import Certificate
from decodeloop.types.routing import Losslessness, Regime

__all__ = ["SILENT", "Declared", "Standing", "Told", "standing_of", "told_by_policy"]

LOSSLESS_VERIFIERS = ("coupled", "rejection", "block")


@dataclass(frozen=True, slots=True)
class Told:
    """What a server says of its own configuration; None: it doesn't.

    lossless: by its acceptance rule. regime: what certificates are about, field by field, as far as it is told.
    """

    version: str = ""
    speculates: bool | None = None
    methods: tuple[str, ...] = ()
    lossless: bool | None = None
    regime: Mapping[str, Any] | None = None


SILENT = Told()


@dataclass(frozen=True, slots=True)
class Standing:
    """certificate: the hash of the one that holds; "" without."""

    losslessness: Losslessness
    why: str
    methods: tuple[str, ...] = ()
    certificate: str = ""


@dataclass(frozen=True, slots=True)
class Declared:
    """What its operator says of a pool. certificate: its signature was checked when it was read."""

    regime: Regime
    losslessness: Losslessness = Losslessness.UNKNOWN
    methods: tuple[str, ...] = ()
    certificate: Certificate | None = None


def standing_of(declared: Declared, told: Mapping[str, Told], now_s: float) -> Standing:
    """told: by server; it goes before what is declared. now_s: Unix time, for certificates end."""
    methods = declared.methods or tuple(sorted({each for one in told.values() for each in one.methods}))
    certificate = declared.certificate
    faults = [] if certificate is None else _faults(certificate, told, now_s)
    lossy = [name for name, one in told.items() if one.lossless is False]
    if lossy:
        status, why = Losslessness.LOSSY, f"{', '.join(lossy)} accepts drafts by a lossy rule"
    elif declared.losslessness is Losslessness.LOSSY:
        status, why = Losslessness.LOSSY, "declared"
    elif certificate is not None and not faults:
        return Standing(Losslessness.CERTIFIED, f"until {certificate.expires_at}", methods, certificate.hash)
    else:
        status, why = _uncertified(declared, told)
    if faults:
        why = f"{why}; its certificate does not hold: {', '.join(faults)}"
    return Standing(status, why, () if status is Losslessness.PLAIN else methods)


def _uncertified(declared: Declared, told: Mapping[str, Told]) -> tuple[Losslessness, str]:
    speculating = [name for name, one in told.items() if one.speculates]
    plain = declared.regime is Regime.PLAIN
    if plain and speculating:
        return Losslessness.UNKNOWN, f"declared plain, but {', '.join(speculating)} speculates"
    if plain or (told and all(one.speculates is False for one in told.values())):
        return Losslessness.PLAIN, "nothing is drafted"
    if told and all(one.lossless for one in told.values()):
        return Losslessness.CLAIMED, "its servers' acceptance rule is lossless"
    if declared.losslessness in (Losslessness.CLAIMED, Losslessness.CERTIFIED):
        return Losslessness.CLAIMED, "declared"
    return Losslessness.UNKNOWN, "nothing is declared, and its servers don't tell"


def told_by_policy(view: Mapping[str, Any]) -> Told:
    """Of an engine of ours, by its own description."""
    verifier, drafters, regime = view.get("verifier"), view.get("drafters"), view.get("regime")
    lossless = verifier in LOSSLESS_VERIFIERS if isinstance(verifier, str) else None
    methods = tuple(str(each) for each in drafters) if isinstance(drafters, list | tuple) else ()
    told = regime if isinstance(regime, Mapping) else None
    version = str(told.get("version", "")) if told is not None else ""
    speculates = bool(methods) if isinstance(drafters, list | tuple) else None
    return Told(version, speculates, methods, lossless, told)


def _faults(certificate: Certificate, told: Mapping[str, Told], now_s: float) -> list[str]:
    """Why it doesn't hold for what runs now, as far as that is told."""
    faults = []
    if datetime.fromtimestamp(now_s, UTC) >= datetime.fromisoformat(certificate.expires_at):
        faults.append(f"expired at {certificate.expires_at}")
    certified = asdict(certificate.regime)
    for name, one in told.items():
        if one.regime is not None:
            changed = [field for field, value in certified.items() if one.regime.get(field) != value]
            if changed:
                faults.append(f"{name} runs with another {', '.join(changed)}")
        elif one.version and one.version != certificate.regime.version:
            faults.append(f"{name} runs version {one.version}, certified is {certificate.regime.version}")
    return faults
