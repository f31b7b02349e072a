"""The checks of a certificate, run against an engine in this process or an endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

from decodeloop.cli.certify_embedded import (
    InProcess,
    careless_control,
    check_invariance,
    drawn_as_served,
    sampled_rows,
)
from decodeloop.cli.certify_session import Asked, Found, Session, Watcher
from decodeloop.cli.costs import measured_costs
from decodeloop.cli.environment import Environment
from decodeloop.cli.opening import open_model, short_name
from decodeloop.engine.build import EmbeddedEngine, build_engine, choose_runner
from decodeloop.engine.regime import read_regime
from decodeloop.engine.runners import Runner
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.lossless.algorithm import check_algorithm, default_policies
from decodeloop.evaluation.lossless.answers import Ask, Remembering
from decodeloop.evaluation.lossless.answers import prompts as chats_of
from decodeloop.evaluation.lossless.bugs import KeepsAll
from decodeloop.evaluation.lossless.certify import Chat, Claims, answer_checks, planned
from decodeloop.evaluation.lossless.declaration import check_declaration
from decodeloop.evaluation.lossless.endpoint import Endpoint, Facts, Served
from decodeloop.evaluation.lossless.outcome import Check, Control, Level
from decodeloop.evaluation.lossless.sampler import check_sampler
from decodeloop.evaluation.workloads.file import read_file
from decodeloop.evaluation.workloads.suite import mini_suite
from decodeloop.governance.certificate import Regime, digest
from decodeloop.policy import policies
from decodeloop.speculation import Verifier
from decodeloop.speculation.verifiers import verifiers

COUPLED = "coupled"
INVARIANT = "batch-invariant"
CONTROL_ASKS = 12


class Embedded:
    """Opens the engine under certification: several times, on one runner."""

    def __init__(self, model: str, settings: EngineSettings, environment: Environment) -> None:
        self.model, self.settings, self._environment = model, settings, environment
        self.checkpoint = open_model(model, environment)
        self.runner: Runner = choose_runner(self.checkpoint, settings).runner

    def open(self, verifier: Verifier | None = None) -> EmbeddedEngine:
        """verifier: instead of the one that the settings name."""
        return build_engine(
            self.checkpoint,
            self.settings,
            clock=time.monotonic,
            name=short_name(self.model),
            runner=self.runner,
            verifier=verifier,
            measure=measured_costs(self.checkpoint, self.settings, self._environment),
        )


def certify_embedded(asked: Asked, model: str, settings: EngineSettings, watcher: Watcher) -> Found:
    """White box."""
    if asked.declared or asked.black:
        raise ValueError("--declare and --black-box are for URLs: an engine in this process is seen as it is")
    chats = _chats(asked)
    embedded = Embedded(model, settings, asked.environment)
    regime = read_regime(embedded.open(), settings)
    claims = Claims(exact=regime.numerics == INVARIANT, coupled=settings.verifier == COUPLED, steers=True)
    watcher.say(f"white box: {regime.engine}, {regime.model}, {regime.weight_format}, verifier {regime.verifier}")
    _announce(Level.WHITE, claims, len(chats), asked, watcher)
    with Session(asked, _name(regime, "white", asked, chats), watcher) as session:
        session.run({"algorithm": partial(_algorithm, asked, settings, watcher)})
        if claims.exact:
            session.run({"batch invariance": partial(check_invariance, embedded.runner)})
        asks = [Ask(messages=chat, temperature=0.0, max_tokens=asked.sizes.tokens) for chat in chats[:CONTROL_ASKS]]
        control = careless_control(embedded.open(KeepsAll()), asks)
        engine = embedded.open()
        session.run({"sampler": partial(_sampler, asked, engine, watcher)})
        engine.worker.start()
        try:
            source = Remembering(InProcess(engine), session.journal)
            checks = answer_checks(source, Level.WHITE, claims, prompts=chats, sizes=asked.sizes, watch=watcher.of)
            session.run({**checks, "identity": partial(_with_control, checks["identity"], control)})
        finally:
            engine.close(1.0)
        return session.found(Level.WHITE, regime)


def certify_endpoint(asked: Asked, url: str, plain_url: str | None, key: str | None, watcher: Watcher) -> Found:
    """Grey box, or black where it shows nothing but texts."""
    chats = _chats(asked)
    endpoint = Endpoint.connect(url, key, model=asked.model)
    plain = None
    try:
        plain = None if plain_url is None else Endpoint.connect(plain_url, key)
        target = Served(endpoint, plain)
        facts = endpoint.facts
        regime = _regime(facts, asked.declared)
        level = Level.BLACK if asked.black else facts.level
        ours = facts.steers and plain is None
        claims = Claims(
            exact=ours and regime.numerics == INVARIANT,
            coupled=ours and facts.seeded and regime.verifier == COUPLED,
            steers=facts.steers,
        )
        watcher.say(f"{level} box: {facts.engine} {facts.version}, {facts.model}; answers compared by {facts.unit}")
        _announce(level, claims, len(chats), asked, watcher)
        with Session(asked, _name(regime, f"{level} {url} {plain_url}", asked, chats), watcher) as session:
            session.run({"declaration": partial(check_declaration, facts.configuration, regime.flags)})
            before = endpoint.accepted_total()
            source = Remembering(target, session.journal)
            session.run(answer_checks(source, level, claims, prompts=chats, sizes=asked.sizes, watch=watcher.of))
            after = endpoint.accepted_total()
            if before is not None and after is not None and after <= before and not session.told_of_speculation:
                session.why = session.why or "its metrics count no accepted draft token: speculation did not run"
            return session.found(level, regime)
    finally:
        endpoint.close()
        if plain is not None:
            plain.close()


def regime_of_settings(environment: Environment, model: str, settings: EngineSettings) -> Regime:
    return read_regime(Embedded(model, settings, environment).open(), settings)


def observed_regime(url: str, key: str | None, model: str | None) -> tuple[Regime, tuple[str, ...]]:
    """A running endpoint's regime, and the fields of it that it doesn't tell."""
    endpoint = Endpoint.connect(url, key, model=model)
    endpoint.close()
    facts = endpoint.facts
    if facts.regime is not None:
        return Regime.from_json(dict(facts.regime)), ()
    observed = _regime(facts, {})
    told = {"engine", "model"} | ({"version"} if facts.version else set())
    return observed, tuple(each.name for each in fields(Regime) if each.name not in told)


def _algorithm(asked: Asked, settings: EngineSettings, watcher: Watcher) -> Check:
    """What ships, and what is configured, which may be another package's."""
    return check_algorithm(
        {name: verifiers.load(name) for name in sorted({settings.verifier, *verifiers.names()})},
        default_policies(sorted({settings.policy, *policies.names()})),
        seeds=asked.sizes.seeds,
        progress=watcher.of("algorithm"),
    )


def _sampler(asked: Asked, engine: EmbeddedEngine, watcher: Watcher) -> Check:
    return check_sampler(
        drawn_as_served(engine),
        sampled_rows(engine),
        draws=asked.sizes.draws,
        alpha=asked.sizes.alpha,
        progress=watcher.of("sampler"),
    )


def _with_control(run: Callable[[], Check], control: Control) -> Check:
    check = run()
    return replace(check, controls=(*check.controls, control))


def _regime(facts: Facts, declared: Mapping[str, Any]) -> Regime:
    """As the endpoint states it; else what can be seen, completed by what its owner declares.

    Raises ValueError for a declared field that there isn't, or that the target tells itself.
    """
    seen = (
        dict(facts.regime)
        if facts.regime is not None
        else {"engine": facts.engine, "version": facts.version, "model": facts.model}
    )
    names = {each.name for each in fields(Regime)}
    told = [name for name in declared if seen.get(name)]
    if told or set(declared) - names:
        unknown = ", ".join([*told, *sorted(set(declared) - names)])
        raise ValueError(f"--declare: {unknown}: told by the target itself, or no field of {', '.join(sorted(names))}")
    return Regime.from_json({**seen, **declared})


def _chats(asked: Asked) -> list[Chat]:
    """Raises ValueError for a workload with malformed lines, naming the first."""
    if asked.workload is None:
        return chats_of(mini_suite(asked.sizes.prompts_a_class))
    found = read_file(asked.workload)
    if found.faults:
        raise ValueError(f"{asked.workload}, line {found.faults[0].line}: {found.faults[0].why}")
    return chats_of(found.workload)


def _announce(level: Level, claims: Claims, prompts: int, asked: Asked, watcher: Watcher) -> None:
    """Power in advance."""
    for name, power in planned(level, claims, prompts, asked.sizes).items():
        rate = f"; a lossless target fails it with probability {power.false_failure_rate:g} at most"
        watcher.say(f"plan  {name}: catches {power}{rate}")


def _name(regime: Regime, where: str, asked: Asked, chats: Sequence[Chat]) -> str:
    """Of the journal: another regime, place, size or workload is another certification."""
    return digest([regime.hash, where, asdict(asked.sizes), [list(map(dict, chat)) for chat in chats]])[:32]
