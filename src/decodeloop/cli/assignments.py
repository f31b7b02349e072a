"""`--set name=value`: a policy's settings and options on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from decodeloop import config
from decodeloop.policy import Policy, PolicySettings, policies
from decodeloop.types import CostModel

OWN = tuple(field.name for field in fields(PolicySettings) if field.name != "options")


def open_policy(name: str, assignments: Sequence[str], cost: CostModel | None, *, max_draft_len: int) -> Policy:
    """The policy called `name`; assignments are of PolicySettings' fields or else the policy's own options.

    Raises:
        ValueError: no such policy, setting or option, or a value that it can't have.
    """
    settings = {"max_draft_len": str(max_draft_len), "draft_len": str(min(4, max_draft_len))}
    options: dict[str, str] = {}
    for each in assignments:
        key, equals, value = each.partition("=")
        if not equals:
            raise ValueError(f"--set {each}: write name=value")
        (settings if key in OWN else options)[key] = value
    lines = [f"{key}: {value}" for key, value in settings.items()]
    lines += ["options:", *(f"  {key}: {value}" for key, value in options.items())] if options else []
    build = policies.load(name)
    limits = config.load("\n".join(lines), PolicySettings, env={}, source="--set")
    policy = build(limits, cost)
    if options and not policy.learns:
        raise ValueError(f"policy {name} takes no options, got {', '.join(options)}; it has {', '.join(OWN)}")
    return policy
