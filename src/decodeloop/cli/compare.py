"""`decodeloop compare A.card B.card`: in what two result cards may be compared, how they differ, what is unsaid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from decodeloop.cli.measuring import EXIT_INVALID, EXIT_NO, table
from decodeloop.evaluation.card import Card, read
from decodeloop.evaluation.card_compare import Comparison, compare, diff, left_out


def compare_command(
    cards: Annotated[list[Path], typer.Argument(help="Two cards to compare; one: only what it leaves out.")],
    as_diff: Annotated[bool, typer.Option("--diff", help="List every value that differs, by its place.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """Check what is comparable before comparing, and list what a claim leaves out.

    Exit codes: 0 comparable; 1 not comparable; 2 no card; 3 a card of an invalid run.
    """
    if len(cards) > 2:
        raise ValueError(f"compare takes one or two cards, not {len(cards)}")
    read_in = [read(path) for path in cards]
    found: dict[str, Any]
    if len(read_in) == 1:
        found, code = _alone(read_in[0])
    else:
        one, other = read_in
        comparison = compare(one, other)
        found, code = _both(one, other, comparison)
        if as_diff:
            for path, a, b in diff(one, other):
                print(f"{path}: {a} | {b}")
    if as_json:
        print(orjson.dumps({**found, "exit": code}).decode())
    if code:
        raise typer.Exit(code)


def _alone(card: Card) -> tuple[dict[str, Any], int]:
    missing = left_out(card)
    print(f"{card.identity.id}: {card.identity.mode}, {'valid' if card.validity.valid else 'INVALID'}")
    _print_left_out(card, missing)
    found = {"verdict": "valid" if card.validity.valid else "invalid", "left_out": list(missing)}
    return found, 0 if card.validity.valid else EXIT_INVALID


def _both(one: Card, other: Card, comparison: Comparison) -> tuple[dict[str, Any], int]:
    print("COMPARABLE" if comparison.comparable else "NOT COMPARABLE")
    for each in comparison.differences:
        print(f"  {each.weight:<9} {each.what}: {each.one} | {each.other}")
    if not comparison.shared:
        print("  forbids   no load was measured by both")
    if comparison.comparable:
        rows: list[dict[str, Any]] = [
            {
                "load": shared.level,
                one.identity.arm: shared.one,
                f"{other.identity.arm} (other)": shared.other,
                "ratio": shared.ratio,
                "low": shared.low,
                "high": shared.high,
            }
            for shared in comparison.shared
        ]
        print("output tokens a second, the other over the first; two runs, not paired: drift between them is in it")
        for line in table(rows):
            print(line)
    for card, missing in zip((one, other), comparison.left_out, strict=True):
        _print_left_out(card, missing)
    found = {
        "verdict": "comparable" if comparison.comparable else "not comparable",
        "differences": [[d.weight, d.what, d.one, d.other] for d in comparison.differences],
        "shared": [
            {"load": s.level, "ratio": s.ratio, "low": s.low, "high": s.high if math.isfinite(s.high) else None}
            for s in comparison.shared
        ],
        "left_out": [list(missing) for missing in comparison.left_out],
    }
    valid = one.validity.valid and other.validity.valid
    return found, EXIT_INVALID if not valid else 0 if comparison.comparable else EXIT_NO


def _print_left_out(card: Card, missing: tuple[str, ...]) -> None:
    print(f"{card.identity.id} leaves out{'' if missing else ' nothing that is asked for'}")
    for why in missing:
        print(f"  - {why}")
