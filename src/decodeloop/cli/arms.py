"""Arms as they are typed: `off`, `adaptive`, `fixed:4`, `ngram:8`, or `LABEL=TARGET;key=value;...`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from decodeloop.evaluation.plan import Arm

EMBEDDED = "embedded"
ASKED = ("speculation", "draft_len", "drafter")  # of the `decodeloop` body field
OWN = ("model", "role", "lossless", "engine", "note", "dialect", "key")


def parse_arm(text: str, default_target: str) -> Arm:
    """One arm.

    Without `=`, an arm of the default target: `off`, `adaptive` (the policy decides), `fixed:K`, `DRAFTER:K`. With it:
    a label, a target (`embedded` or a URL) and, after semicolons, what is particular: `speculation`, `draft_len` and
    `drafter` (asked for in every request), `model`, `role`, `lossless` (yes or no), `engine`, `note`, `dialect`, `key`
    (the endpoint's, which is in no record: see `keys_of`), `body.FIELD` (a JSON value, sent with every request).
    Anything else is a setting of the engine that the arm needs (`policy`, `drafters`, ...). Raises ValueError.
    """
    label, equals, rest = text.partition("=")
    if not equals:
        return _short(text.strip(), default_target)
    target, *options = (part.strip() for part in rest.split(";"))
    if not label.strip() or not target:
        raise ValueError(f"{text!r} is no arm: LABEL=TARGET;key=value;..., or off, adaptive, fixed:4")
    asked: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    own: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for option in filter(None, options):
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"{option!r} in arm {label!r} is no key=value")
        if name in ASKED:
            asked[name] = int(value) if name == "draft_len" else value
        elif name in OWN:
            own[name] = _flag(value) if name == "lossless" else value
        elif name.startswith("body."):
            fields[name.removeprefix("body.")] = _json(value)
        else:
            settings[name] = value
    if asked:
        fields["decodeloop"] = asked
    given = {name: value for name, value in own.items() if name not in ("dialect", "key")}
    settings |= {name: own[name] for name in ("dialect",) if name in own}
    return Arm(label=label.strip(), target=target, fields=fields, settings=settings, **given)


def keys_of(texts: Sequence[str]) -> dict[str, str]:
    """Label -> API key, of typed arms that have one of their own."""
    found: dict[str, str] = {}
    for text in texts:
        label, _, rest = text.partition("=")
        own = [part.strip()[4:] for part in rest.split(";")[1:] if part.strip().startswith("key=")]
        found |= {label.strip(): key for key in own}
    return found


def without_keys(arguments: Sequence[str]) -> list[str]:
    """A command as it may be recorded: a key is a secret."""
    kept = [re.sub(r"(;\s*key=)[^;]*", r"\1...", each) for each in arguments]
    for place, each in enumerate(arguments):
        if each == "--key" and place + 1 < len(kept):
            kept[place + 1] = "..."
        elif each.startswith("--key="):
            kept[place] = "--key=..."
    return kept


def _short(text: str, target: str) -> Arm:
    asked: Mapping[str, Any]
    name, colon, length = text.partition(":")
    if text == "off":
        asked, role = {"speculation": "off"}, "off"
    elif text in ("adaptive", "auto"):
        asked, role = {"speculation": "auto"}, "adaptive"
    elif colon and name and length.isdigit():
        forced = {"speculation": "force", "draft_len": int(length)}
        asked, role = (forced if name == "fixed" else {**forced, "drafter": name}), "static"
    else:
        raise ValueError(f"no arm {text!r}: off, adaptive, fixed:K, DRAFTER:K, or LABEL=TARGET;key=value;...")
    return Arm(label=text, target=target, role=role, fields={"decodeloop": asked})


def _flag(value: str) -> bool:
    if value not in ("yes", "no"):
        raise ValueError(f"lossless is yes or no, not {value!r}")
    return value == "yes"


def _json(value: str) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
