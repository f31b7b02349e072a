"""A simulated engine: known step times, acceptance drawn per token from a known law. All it says is synthetic."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from decodeloop.policy.attention import Attention
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from decodeloop.policy.draft_cost import DraftSample
from decodeloop.types import (
    DecodeRequest,
    Knowledge,
    Load,
    Reason,
    RequestClass,
    Scores,
    Slo,
    Speculation,
    StepRecord,
    StepRow,
)

K = 8


def step_ms(tokens, context, sequences):
    """A small CPU engine: flat up to 6 tokens, then 0.45 ms a token in stairs of 4, and attention."""
    climbed = np.maximum(0.0, np.ceil(np.asarray(tokens) / 4) * 4 - 6)
    return 4.0 + 0.45 * climbed + 2e-4 * context + 3e-5 * tokens * context / max(sequences, 1) + 0.02 * sequences


def measured_surface(drafters=(), seed=0, truth=step_ms):
    """What a start-up measurement of that engine would give (3 % noise)."""
    rng, samples = np.random.default_rng(seed), []
    for sequences in (1, 2, 4, 8, 16, 32):
        for context in (64, 512):
            for length in (1, 2, 3, 4, 5, 6, 8, 9):
                tokens, total = sequences * length, sequences * context
                ms = float(truth(tokens, total, sequences)) * float(np.exp(rng.normal(0, 0.03)))
                samples.append(CostSample(tokens, total, sequences, ms))
    drafts = [
        DraftSample(name, depth, n, drafter.ms(depth, n))
        for name, drafter in dict(drafters).items()
        if not drafter.free
        for depth in (1, 4, 8)
        for n in (1, 8)
    ]
    return CostSurface(samples, drafts)


@dataclass
class SimulatedDrafter:
    """logits: class -> mean logit of a token's acceptance; it varies by `spread` from token to token, and the drafter
    knows that up to `blur`. proposes: how often it has anything to say."""

    logits: dict[RequestClass, float]
    free: bool = True
    pass_ms: float = 0.0
    spread: float = 1.5
    blur: float = 0.7
    proposes: float = 1.0

    def ms(self, depth, sequences):
        return 0.0 if self.free else self.pass_ms * depth * (1.0 + 0.02 * sequences)

    def drafts(self, rng, classes, length):
        """For each class: (survival confidence, how many tokens the target agrees with) of a draft."""
        means, shape = np.array([self.logits[c] for c in classes]), (len(classes), length)
        logits = rng.normal(means[:, None], self.spread, shape)
        hits = rng.random(shape) < 1.0 / (1.0 + np.exp(-logits))
        said = np.cumprod(1.0 / (1.0 + np.exp(-(logits + rng.normal(0.0, self.blur, shape)))), axis=1)
        right = np.where(hits.all(axis=1), length, np.argmin(hits, axis=1))
        silent = rng.random(len(classes)) >= self.proposes
        return [(said[i, :0], 0) if silent[i] else (said[i], int(right[i])) for i in range(len(classes))]


@dataclass
class Client:
    """Requests of one class, one after another, each of `tokens` output tokens."""

    request_class: RequestClass
    tenant: str = "t"
    tokens: int = 200
    slo: Slo = Slo()
    speculation: Speculation = Speculation()
    temperature: float = 0.0


@dataclass
class _Running:
    client: Client
    id: int
    context: int = 100
    left: int = 200
    started_ms: float = 0.0

    @property
    def name(self):
        return f"r{self.id}"

    @property
    def organization(self):
        return self.client.tenant

    @property
    def request(self):
        return self.client


@dataclass
class Tally:
    tokens: int = 0
    row_ms: float = 0.0  # step time, summed over rows
    verified: int = 0
    rows: int = 0
    tpot_ms: list[float] = field(default_factory=list)

    @property
    def speed(self):
        """Tokens a ms that a request of this class gets."""
        return self.tokens / self.row_ms


class SimulatedEngine:
    def __init__(
        self, policy, drafters, clients, *, seed=0, noise=0.02, truth=step_ms, early=False, rests=False, beside_ms=None
    ):
        """early: free drafters propose before the plan, which sees what they say. rests: then only where attention has
        them asked, as in our engine. beside_ms: of a step's rows, beside their tokens' time and drafting."""
        self.policy, self.drafters, self.truth = policy, dict(drafters), truth
        self.early, self.attention = early or rests, Attention() if rests else None
        self.beside_ms = beside_ms or (lambda rows: 0.0)
        self.rng, self.noise = np.random.default_rng(seed), noise
        self.running = []
        self.now_ms, self.steps, self.issued = 0.0, 0, 0
        self.tally, self.reasons, self.records = {}, {}, []
        self.set_clients(clients)

    def set_clients(self, clients):
        """Closed loop: a request of each client runs, and is followed by the next."""
        for running in self.running:
            self._end(running)
        self.running = [self._begin(client) for client in clients]

    def reset_tally(self):
        self.tally, self.reasons, self.records = {}, {}, []
        self.measured_from_ms = self.now_ms

    def run(self, steps):
        for _ in range(steps):
            self._step()
        return self

    @property
    def tokens(self):
        return sum(tally.tokens for tally in self.tally.values())

    @property
    def rate(self):
        return self.tokens / sum(record.step_ms for record in self.records)

    def mean_verified(self, request_class=None):
        tallies = [t for c, t in self.tally.items() if request_class in (None, c)]
        return sum(t.verified for t in tallies) / max(sum(t.rows for t in tallies), 1)

    def _begin(self, client):
        self.issued += 1
        return _Running(client, self.issued, left=client.tokens, started_ms=self.now_ms)

    def _end(self, running):
        if self.attention is not None:
            self.attention.finish(running)

    def _request(self, running, proposals=()):
        room = min(K, running.left - 1)
        client = running.client
        return DecodeRequest(
            request_id=running.name,
            tenant=client.tenant,
            request_class=client.request_class,
            context_tokens=running.context,
            max_draft_len=room,
            cap=Reason.CAPPED_LIMIT if room < K else None,
            drafters=tuple(self.drafters),
            speculation=client.speculation,
            slo=client.slo,
            temperature=client.temperature,
            proposals=dict(proposals),
        )

    def tells(self, name):
        return self.early and self.drafters[name].free

    def _step(self):
        classes = [running.client.request_class for running in self.running]
        drawn = {name: drafter.drafts(self.rng, classes, K) for name, drafter in self.drafters.items()}
        asked = range(len(self.running)) if self.attention is None else self.attention.due(self.running)
        requests = [
            self._request(
                running, [(n, drawn[n][i][0].tolist() if i in asked else []) for n in self.drafters if self.tells(n)]
            )
            for i, running in enumerate(self.running)
        ]
        load = Load(len(requests), 0, sum(r.context_tokens for r in requests), 0.9)
        plan = self.policy.plan(load, requests)
        present = [i for i in range(len(requests)) if i not in plan.held]
        requests = [requests[i] for i in present]
        drawn = {name: [own[i] for i in present] for name, own in drawn.items()}
        load = Load(len(requests), 0, sum(r.context_tokens for r in requests), 0.9)
        played = [
            drawn[name][i][0][:length] if name is not None else np.zeros(0)
            for i, (name, length) in enumerate(zip(plan.drafters, plan.draft_lens, strict=True))
        ]
        decision = self.policy.allocate(plan, Scores(tuple(played), Knowledge.SELF))
        if self.attention is not None:
            self.attention.heed([self.running[i] for i in present], asked, decision)
        tokens = sum(1 + length for length in decision.verify_lens)
        verify_ms = float(self.truth(tokens, load.context_tokens, len(requests)))
        verify_ms *= float(np.exp(self.rng.normal(0.0, self.noise)))
        rows = [
            self._row(
                request, plan.drafters[i], decision.reasons[i], decision.verify_lens[i], played[i], drawn_for, heard
            )
            for i, request in enumerate(requests)
            for drawn_for, heard in [({name: drafts[i] for name, drafts in drawn.items()}, present[i] in asked)]
        ]
        self._record(load, decision, rows, verify_ms, present)

    def _row(self, request, drafter, *outcome):
        reason, verified, played, drawn, heard = outcome
        accepted = min(drawn[drafter][1], verified) if drafter is not None else 0
        return StepRow(
            request_id=request.request_id,
            tenant=request.tenant,
            request_class=request.request_class,
            reason=reason,
            drafter=drafter,
            context_tokens=request.context_tokens,
            draft_len=len(played),
            verify_len=verified,
            scores=tuple(played.tolist()),
            accepted=accepted,
            emitted=accepted + 1,
            shadow_match={
                name: min(hit, accepted + 1) for name, (_, hit) in drawn.items() if heard and self.drafters[name].free
            },
        )

    def _record(self, load, decision, rows, verify_ms, present):
        depths = {}
        for row in rows:
            if row.drafter is not None and row.draft_len:
                depths.setdefault(row.drafter, []).append(row.draft_len)
        draft_ms = sum(self.drafters[name].ms(max(lens), len(lens)) for name, lens in depths.items())
        beside_ms = self.beside_ms(rows)
        total = draft_ms + verify_ms + beside_ms
        record = StepRecord(
            step=self.steps,
            at_s=self.now_ms / 1e3,
            load=load,
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            sample_ms=0.0,
            overhead_ms=beside_ms,
            step_ms=total,
            predicted_ms=decision.expected_ms,
            rows=tuple(rows),
        )
        self.steps += 1
        self.now_ms += total
        self.records.append(record)
        self.policy.observe(record)
        for i, row in zip(present, rows, strict=True):
            self._advance(i, row, total)

    def _advance(self, i, row, total_ms):
        tally = self.tally.setdefault(row.request_class, Tally())
        tally.tokens += row.emitted
        tally.row_ms += total_ms
        tally.verified += row.verify_len
        tally.rows += 1
        self.reasons[row.reason] = self.reasons.get(row.reason, 0) + 1
        running = self.running[i]
        running.context += row.emitted
        running.left -= row.emitted
        if running.left <= 0:
            tally.tpot_ms.append((self.now_ms - running.started_ms) / running.client.tokens)
            self._end(running)
            self.running[i] = self._begin(running.client)
