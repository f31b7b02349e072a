"""An engine on the toy target, stepped by hand: what the CASES tests stand on.

Tokens are letters of a small vocabulary (`ToyText`), so outputs can be read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from decodeloop.engine.job import Job
from decodeloop.engine.kv_cache import KvCache
from decodeloop.engine.proposals import Proposers
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.toy import ToyRunner
from decodeloop.engine.scheduler import Scheduler
from decodeloop.engine.sequence import Sequence
from decodeloop.engine.settings import EngineSettings
from decodeloop.engine.step import Engine
from decodeloop.engine.text.output import Output
from decodeloop.policy import PolicySettings, policies
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.speculation.verifiers import verifiers
from decodeloop.types import Identity, Request, SamplingParams, StepRecord

VOCAB = 64
EOS = 0


class ToyText:
    """A token is a letter; EOS is special. Ids from 60 on are halves of a two-byte letter."""

    vocab_size = VOCAB
    eos_ids = frozenset({EOS})
    bos_id = None
    add_bos = False

    def encode(self, text, *, special=False):
        return [ord(c) - 64 for c in text]

    def token_bytes(self, token):
        return b"" if token == EOS else chr(64 + token).encode()

    def token_text(self, token):
        return "<eos>" if token == EOS else chr(64 + token)

    def is_special(self, token):
        return token == EOS

    def decode(self, tokens, *, skip_special=True):
        return "".join(self.token_text(t) for t in tokens if not (skip_special and t == EOS))


@dataclass
class Heard:
    """A reader that keeps everything."""

    chunks: list = field(default_factory=list)
    ended: bool = False
    error: Exception | None = None

    def put(self, chunks):
        self.chunks.extend(chunks)

    def end(self):
        self.ended = True

    def fail(self, error):
        self.error = error

    @property
    def text(self):
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def token_ids(self):
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def logprobs(self):
        return [entry for chunk in self.chunks for entry in chunk.logprobs]

    @property
    def finish_reason(self):
        return next((chunk.finish_reason for chunk in self.chunks if chunk.finish_reason), None)

    @property
    def usage(self):
        return next(chunk.usage for chunk in reversed(self.chunks) if chunk.usage)


class Rig:
    """One engine. `drafters`: name -> Drafter. Keyword settings go to EngineSettings, `toy` to the toy model."""

    def __init__(
        self,
        drafters=None,
        *,
        policy="off",
        verifier="coupled",
        blocks=256,
        spare_blocks=0,
        toy=None,
        matcher=None,
        runner=None,
        **settings,
    ):
        self.settings = EngineSettings(policy=policy, verifier=verifier, **settings)
        options = RunnerOptions(block_tokens=self.settings.block_tokens, options={"vocab_size": VOCAB, **(toy or {})})
        self.runner = runner or ToyRunner(None, options)
        self.runner.allocate_kv(blocks)
        self.cache = KvCache(
            blocks,
            self.settings.block_tokens,
            prefix_caching=self.settings.prefix_caching,
            spare_blocks=spare_blocks,
        )
        max_context = self.settings.max_context or self.runner.info.max_context
        self.scheduler = Scheduler(self.cache, self.settings, max_context)
        judge = verifiers.load(verifier)()
        limits = PolicySettings(max_draft_len=self.settings.max_draft_len, draft_len=self.settings.draft_len)
        self.now_s = 0.0
        self.records: list[StepRecord] = []
        self.text = ToyText()
        self.matcher = matcher
        self._ids = itertools.count()
        self.jobs: dict[int, Job] = {}
        self.engine = Engine(
            runner=self.runner,
            scheduler=self.scheduler,
            proposers=Proposers(
                drafters or {}, shadow_len=self.settings.shadow_len or 0, shares_noise=judge.shares_noise
            ),
            verifier=judge,
            policy=policies.load(policy)(limits, None),
            tokenizer=self.text,
            settings=self.settings,
            clock=lambda: self.now_s,
        )

    def sequence(self, request: Request, choice: int = 0) -> Sequence:
        prompt = tuple(request.prompt)
        matcher = None if self.matcher is None else self.matcher()
        state = SamplingState(request.params, prompt, vocab_size=VOCAB, eos_ids=self.text.eos_ids, matcher=matcher)
        room = self.scheduler.max_context - len(prompt)
        return Sequence(
            id=next(self._ids),
            request=request,
            choice=choice,
            prompt_tokens=len(prompt),
            tokens=list(prompt),
            max_tokens=min(request.params.max_tokens or room, room),
            eos_ids=self.text.eos_ids,
            state=state,
            chance=RequestChance.of(request.seed, prompt, choice),
            output=Output(self.text, request.params),
        )

    def submit(self, prompt, *, seed=1, organization="local", n=1, **params) -> Heard:
        """Queue a request; its answer grows in what is returned as steps are taken."""
        extra = {name: params.pop(name) for name in ("speculation", "priority", "deadline_ms", "slo") if name in params}
        request = Request(
            id=f"r{len(self.jobs)}",
            model="toy",
            prompt=tuple(prompt),
            params=SamplingParams(**{"temperature": 0.0, "max_tokens": 16, **params}),
            seed=seed,
            n=n,
            identity=Identity(organization),
            arrived_s=self.now_s,
            **extra,
        )
        heard = Heard()
        job = Job(request, lambda choice: self.sequence(request, choice), heard)
        heard.job = job
        self.jobs[job.sequences[0].id] = job
        self.scheduler.submit(job.sequences[0], self.now_s)
        return heard

    def abort(self, heard: Heard) -> None:
        heard.job.ended = True
        for sequence in heard.job.sequences:
            if sequence.finish_reason is None:
                self.engine.abort(sequence)

    def step(self):
        self.now_s += 0.001
        outcome = self.engine.step()
        for said in outcome.said:
            job = self.jobs[said.sequence.id]
            if said.sequence.error is not None:
                job.fail(RuntimeError(said.sequence.error))
                continue
            job.say(said.sequence, said.chunks)
            for sibling in job.open_siblings():
                self.jobs[sibling.id] = job
                self.scheduler.submit_sibling(sibling, self.now_s)
        if outcome.record is not None:
            self.records.append(outcome.record)
        return outcome

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def run(self, most=2000) -> None:
        for _ in range(most):
            if not self.busy:
                return
            self.step()
        raise AssertionError(f"still busy after {most} steps")

    def generate(self, prompt, **params) -> Heard:
        heard = self.submit(prompt, **params)
        self.run()
        return heard

    @property
    def rows(self):
        return [row for record in self.records for row in record.rows]

    def no_block_leaked(self) -> bool:
        self.cache.reset_prefixes()
        return self.cache.free_blocks == self.cache.blocks


def plain_text(prompt, *, toy=None, **params) -> tuple[int, ...]:
    """Prompt and plain output: what an oracle drafter replays."""
    rig = Rig(toy=toy)
    return (*prompt, *rig.generate(prompt, **params).token_ids)
