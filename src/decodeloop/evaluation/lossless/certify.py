"""The checks of a certificate that ask a target for answers, by level. Each is run when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from decodeloop.evaluation.lossless import distributions, equality
from decodeloop.evaluation.lossless.answers import Arm, Ask, Progress, Remembering
from decodeloop.evaluation.lossless.distributions import check_distributions
from decodeloop.evaluation.lossless.equality import Company, check_identity
from decodeloop.evaluation.lossless.outcome import Check, Level, Power
from decodeloop.evaluation.lossless.sizes import Sizes
from decodeloop.evaluation.lossless.texts import Effort, check_texts

Chat = tuple[Mapping[str, str], ...]
Watch = Callable[[str], Progress]  # a check's name -> its progress

BLACK_PROMPTS = 25
SEED = 20_241  # of answers that are compared token for token
SAMPLED = (  # uncertain from the first token on, and full of words that a copying drafter proposes
    "Say the words apple, pear, plum, fig and lime in an order of your own, with nothing else.",
    "Repeat one of these, word for word: the night train leaves at nine; the night boat leaves at ten; the last train "
    "leaves at noon; the last boat leaves at nine.",
    "Write a line with the words tick and tock, many times each, in any order.",
    "Write one short sentence about the sea, the sand or the sky.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What the target's regime promises, and so what is checked.

    exact: a token's logits don't depend on its company: no answer may differ. coupled: seeds fix tokens whatever is
    drafted: identity at temperature 1 as well. steers: it can be forced to speculate.
    """

    exact: bool
    coupled: bool
    steers: bool


def planned(level: Level, claims: Claims, prompts: int, sizes: Sizes) -> dict[str, Power]:
    """The power of the checks on answers, before any is asked for. (That of texts depends on the reference's law.)"""
    if level is Level.BLACK:
        return {}
    answers = prompts * len(_temperatures(claims))
    alpha = sizes.alpha / len(_companies(claims, sizes))
    powers = {"identity": equality.power_of(answers, 0.0, exact=claims.exact, alpha=alpha)}
    if _samples(level, claims):
        powers["distributions"] = distributions.power_of(
            sizes.samples, sizes.sample_prompts, length=sizes.sample_tokens, alpha=sizes.alpha
        )
    return powers


def answer_checks(
    source: Remembering, level: Level, claims: Claims, *, prompts: Sequence[Chat], sizes: Sizes, watch: Watch
) -> dict[str, Callable[[], Check]]:
    """By name; each raises OSError or ValueError where the target stops answering."""
    if level is Level.BLACK:
        return {"texts": partial(_texts, source, prompts, sizes, watch)}
    identity = partial(
        check_identity,
        source,
        [
            Ask(messages=chat, temperature=temperature, max_tokens=sizes.tokens, seed=SEED)
            for temperature in _temperatures(claims)
            for chat in prompts
        ],
        _companies(claims, sizes),
        exact=claims.exact,
        alpha=sizes.alpha,
        must_speculate=True,
        progress=watch("identity"),
    )
    if not _samples(level, claims):
        return {"identity": identity}
    sampled = partial(
        check_distributions,
        source,
        [
            Ask(messages=({"role": "user", "content": text},), temperature=1.0, max_tokens=sizes.sample_tokens)
            for text in SAMPLED[: sizes.sample_prompts]
        ],
        samples=sizes.samples,
        length=sizes.sample_tokens,
        arm=Arm.FORCED,
        at_once=sizes.at_once,
        alpha=sizes.alpha,
        must_speculate=True,
        progress=watch("distributions"),
    )
    return {"identity": identity, "distributions": sampled}


def _texts(source: Remembering, prompts: Sequence[Chat], sizes: Sizes, watch: Watch) -> Check:
    effort = Effort(
        samples=max(sizes.samples // 16, 10),
        length=sizes.tokens,
        permutations=sizes.permutations,
        rounds=sizes.power_rounds,
        alpha=sizes.alpha,
    )
    asks = [Ask(messages=chat, temperature=1.0, max_tokens=sizes.tokens) for chat in prompts[:BLACK_PROMPTS]]
    return check_texts(source, asks, effort, at_once=sizes.at_once, progress=watch("texts"))


def _temperatures(claims: Claims) -> tuple[float, ...]:
    return (0.0, 1.0) if claims.coupled else (0.0,)


def _companies(claims: Claims, sizes: Sizes) -> list[Company]:
    """Alone and in company, as served; and speculating whatever the policy thinks of it."""
    served = [Company(arm=Arm.SERVED, at_once=n) for n in (1, sizes.at_once)]
    return [*served, Company(arm=Arm.FORCED, at_once=sizes.at_once)] if claims.steers else served


def _samples(level: Level, claims: Claims) -> bool:
    """Under exact identity at temperature 1 in a white box, laws are equal because texts are."""
    return not (level is Level.WHITE and claims.exact and claims.coupled)
