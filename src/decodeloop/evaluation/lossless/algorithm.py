"""The algorithm, by enumeration: verifiers and policies on every outcome of tables small enough to list them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from decodeloop.evaluation.lossless import rules
from decodeloop.evaluation.lossless.bugs import InnerRuleAtTheEnd, Pinned, ResidualOfRejection
from decodeloop.evaluation.lossless.decided import decided, open_policy
from decodeloop.evaluation.lossless.enumeration import Branch, Table, law, random_table, target_law, total_variation
from decodeloop.evaluation.lossless.joint import (
    LENGTH,
    Submit,
    by,
    joint_distance,
    top_by_own_q,
    top_by_survival,
    top_not_monotone,
)
from decodeloop.evaluation.lossless.outcome import Check, Control, Power
from decodeloop.evaluation.lossless.rules import Rule
from decodeloop.evaluation.lossless.shaped import (
    EXCLUDING,
    REQUESTS,
    FilteredAtTheEnd,
    Honest,
    Open,
    Stale,
    shaped_distance,
    trimmed,
)
from decodeloop.evaluation.lossless.tables import EXACT, TableRows, distance, everywhere, sampled_draft
from decodeloop.policy import Policy
from decodeloop.speculation import Draft, Verifier
from decodeloop.speculation.verifiers.block import BlockVerifier
from decodeloop.speculation.verifiers.rejection import RejectionVerifier
from decodeloop.types import Knowledge, SamplingParams

VOCAB_SIZE, DEPTH = 3, 3
CAUGHT = 1e-6  # total variation of a control that no rounding explains

Verifiers = Mapping[str, Callable[[], Verifier]]
Policies = Mapping[str, Callable[[Verifier], Policy]]
Instance = tuple[str, Callable[[], float]]  # name, and the total variation when asked for


def check_algorithm(
    verifiers: Verifiers,
    policies: Policies,
    *,
    seeds: int,
    cuts: Sequence[Rule] = rules.LEGAL,
    rows: Open = Honest,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Check:
    """cuts: the ways in which drafts may be cut. rows: how a request's parameters shape the rows of a draft."""
    instances = [
        *_verifying(verifiers, seeds, cuts),
        *_deciding(verifiers, policies, seeds),
        *_shaping(verifiers, rows),
    ]
    controls = list(_controls())
    worst, where = 0.0, "nothing"
    for done, (name, ask) in enumerate(instances):
        found = _kept(ask)
        if not found <= worst:
            worst, where = found, name
        progress(done + 1, len(instances) + len(controls))
    caught = []
    for done, (name, ask) in enumerate(controls):
        found = ask()
        caught.append(Control(name, found > CAUGHT, f"total variation {found:.3g}"))
        progress(len(instances) + done + 1, len(instances) + len(controls))
    return Check(
        name="algorithm",
        claim="given equal logits, what is said follows the target's law, whatever is drafted, cut and decided",
        passed=worst < EXACT,
        found=f"total variation at most {worst:.2g} on {len(instances)} instances ({where})",
        measured={"instances": len(instances), "total_variation": worst},
        power=(
            Power(
                deviation="total variation on an enumerated instance",
                size=EXACT,
                probability=1.0,
                samples=len(instances),
                false_failure_rate=0.0,
            ),
        ),
        controls=tuple(caught),
    )


def _kept(ask: Callable[[], float]) -> float:
    """1 where the verifier breaks its contract: asks for rows that can't be, or for a coin twice."""
    try:
        return ask()
    except AssertionError:
        return 1.0


def default_policies(names: Sequence[str]) -> Policies:
    return {name: partial(open_policy, name) for name in names}


def _verifying(verifiers: Verifiers, seeds: int, cuts: Sequence[Rule]) -> Iterator[Instance]:
    """Every verifier, every way to cut; and under verifiers that admit it, cuts that know the token itself."""
    for verifier_name, verifier in verifiers.items():
        judge = verifier()
        every = [*cuts, *rules.UNSOUND] if judge.admits >= Knowledge.SELF else cuts
        for rule in every:
            for seed in range(seeds):
                for zeros in (0.0, 0.35):
                    rng = np.random.default_rng(seed)
                    target = random_table(rng, VOCAB_SIZE, DEPTH + 1, zeros)
                    q = random_table(rng, VOCAB_SIZE, DEPTH, zeros)
                    drafting = partial(rule, q=q, depth=DEPTH)  # type: ignore[call-arg]
                    yield f"{verifier_name}, {_name(rule)}", partial(distance, judge, target, drafting, DEPTH + 1)
            shown = rules.INSTANCES.get(rule)
            if shown is not None:
                drafting = partial(rule, q=shown.q, depth=shown.depth)  # type: ignore[call-arg]
                yield f"{verifier_name}, {_name(rule)}, shown", partial(distance, judge, shown.target, drafting, 3)
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            target, q = (random_table(rng, 2, n) for n in (LENGTH + 1, LENGTH + 1))
            joint = partial(joint_distance, judge, (target, target), (q, q), by(top_by_survival))
            yield f"{verifier_name}, two requests under one budget", joint


def _deciding(verifiers: Verifiers, policies: Policies, seeds: int) -> Iterator[Instance]:
    """Every policy with every verifier."""
    for verifier_name, verifier in verifiers.items():
        judge = verifier()
        for policy_name, policy in policies.items():
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                targets, qs = ([random_table(rng, 2, LENGTH + 1) for _ in range(2)] for _ in range(2))
                submit = partial(decided, fresh=partial(policy, judge), verifier=judge)
                ask = partial(_joint_or_refused, judge, targets, qs, submit)
                yield f"{verifier_name}, policy {policy_name}", ask


def _joint_or_refused(verifier: Verifier, targets: Sequence[Table], qs: Sequence[Table], submit: Submit) -> float:
    """What the verifier refuses is an error to its caller, and no deviation."""
    try:
        return joint_distance(verifier, targets, qs, submit)
    except ValueError:
        return 0.0


def _shaping(verifiers: Verifiers, rows: Open) -> Iterator[Instance]:
    for verifier_name, verifier in verifiers.items():
        for request, params in REQUESTS.items():
            yield f"{verifier_name}, request {request}", partial(shaped_distance, verifier(), params, rows)


def _controls() -> Iterator[Instance]:
    """Every unsound rule and every bug that we know of, on an instance that shows it."""
    for verifier in (RejectionVerifier(), BlockVerifier()):
        of = "rejection" if isinstance(verifier, RejectionVerifier) else "block"
        for rule, shown in rules.INSTANCES.items():
            cut = partial(rule, q=shown.q, depth=shown.depth)  # type: ignore[call-arg]
            yield f"{_name(rule)} under {of}", partial(distance, verifier, shown.target, cut, 3)
        yield f"q not the one drawn from, under {of}", partial(_wrong_q, verifier)
        coin, sevens = everywhere(0.5, 0.5), everywhere(0.7, 0.3)
        for unsound, table in ((top_by_own_q, sevens), (top_not_monotone, coin)):
            name = f"one budget, {unsound.__name__.removeprefix('top_').replace('_', ' ')} under {of}"
            yield name, partial(joint_distance, verifier, (table, table), (table, table), by(unsound))
        for request, illegal in EXCLUDING.items():
            drafting = trimmed(0, illegal)
            ask = partial(shaped_distance, verifier, REQUESTS[request], drafting=drafting)
            yield f"illegal tokens trimmed ({request}) under {of}", ask
        penalties = SamplingParams(presence_penalty=2.0, frequency_penalty=2.0)
        yield f"stale penalties under {of}", partial(shaped_distance, verifier, penalties, Stale)
        for request in ("top_k", "top_p", "min_p"):
            ask = partial(shaped_distance, verifier, REQUESTS[request], FilteredAtTheEnd)
            yield f"{request} on the bonus token alone, under {of}", ask
    yield "block verification: inner rule at a truncated end", _inner_rule
    yield "block verification: residual of rejection", _residual
    even = everywhere(0.5, 0.3, 0.2), everywhere(0.2, 0.3, 0.5)
    yield "acceptance pinned", partial(distance, Pinned(0.7), even[0], partial(sampled_draft, q=even[1], length=2), 3)


def _wrong_q(verifier: Verifier) -> float:
    """Drawn at temperature 1, handed over at temperature 1/2."""
    drawn, reported = everywhere(0.5, 0.3, 0.2), np.array([0.5, 0.3, 0.2]) ** 2

    def drafting(chance: Branch) -> Draft:
        return Draft(sampled_draft(chance, drawn, 2).tokens, (reported / reported.sum(),) * 2)

    return distance(verifier, drawn, drafting, 3)


def _inner_rule() -> float:
    target, q = everywhere(0.5, 0.5), everywhere(0.4, 0.6)

    def said(chance: Branch) -> tuple[int, ...]:
        whole = sampled_draft(chance, q, 2)
        draft = whole.cut(1)
        return InnerRuleAtTheEnd(whole).judge(draft, TableRows(target, draft.tokens), chance).emitted

    return total_variation(law(said, target, 3), target_law(target, 3))


def _residual() -> float:
    rng = np.random.default_rng(4)
    target, q = random_table(rng, 3, 4), random_table(rng, 3, 3)
    return distance(ResidualOfRejection(), target, partial(rules.whole, q=q, depth=3), 4)


def _name(rule: Rule) -> str:
    return getattr(rule, "__name__", "a rule").replace("_", " ")
