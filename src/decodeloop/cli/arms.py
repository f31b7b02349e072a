"""Arms as they are typed: `off`, `adaptive`, `fixed:4`, `ngram:8`, or `LABEL=TARGET;key=value;...`."""

from __future__ import annotations

from collections.abc import Mapping
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
    `drafter` (asked for in every request), `model`, `role`, `lossless` (yes or no), `engine`, `note`; `body.FIELD` (a
    JSON value, sent with every request); anything else is a setting of the engine that the arm needs (`policy`,
    `drafters`, `dtype`, ...). Raises ValueError.
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
