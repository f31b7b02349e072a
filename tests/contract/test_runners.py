"""Every runner in the registry, on every family of models, and runners that are wrong in one way each."""

import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.rows import VerifyRows
from decodeloop.engine.runners import RunnerOptions, runners
from decodeloop.engine.runners.toy import ToyRunner
from decodeloop.speculation.block import Draft
from decodeloop.speculation.drawing import CoupledTokens, PlainSampling
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.testing import check_runner
from decodeloop.types import SamplingParams
from tiny import tiny_hf


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def checkpoint(request, tmp_path_factory):
    return open_checkpoint(tiny_hf(request.param, tmp_path_factory.mktemp(request.param)))


@pytest.mark.parametrize("name", runners.names())
def test_runner_keeps_the_contract(name, checkpoint):
    check_runner(runners.load(name)(checkpoint, RunnerOptions(threads=1)))


class Faulty:
    """A good runner in wrong hands."""

    def __init__(self):
        self._runner = ToyRunner(None, RunnerOptions(block_tokens=4))

    @property
    def info(self):
        return self._runner.info

    def allocate_kv(self, blocks):
        self._runner.allocate_kv(blocks)

    def forward(self, batch):
        return self._runner.forward(batch)

    def copy_kv(self, sources, destinations):
        self._runner.copy_kv(sources, destinations)


class ForgetsToWrite(Faulty):
    """Of a batch's tokens the last one's KV is lost."""

    def forward(self, batch):
        answer = super().forward(batch)
        if len(batch.tokens) > 1 and batch.parents is None:
            last = {name: getattr(batch, name)[-1:] for name in ("positions", "slots")}
            super().forward(replace(batch, tokens=np.zeros(1, np.int32), logit_rows=np.zeros(1, np.int32), **last))
        return answer


class MixesRowsUp(Faulty):
    def forward(self, batch):
        return super().forward(replace(batch, logit_rows=np.sort(batch.logit_rows)))


class DependsOnNeighbours(Faulty):
    def forward(self, batch):
        answer = super().forward(batch)
        return replace(answer, logits=answer.logits * np.float32(1 + 1e-6 * len(batch.tokens)))


class SaysDouble(Faulty):
    def forward(self, batch):
        answer = super().forward(batch)
        return replace(answer, logits=answer.logits.astype(np.float64))


class IgnoresTheVocabulary(Faulty):
    def forward(self, batch):
        return super().forward(replace(batch, vocabulary=None))


class CopiesOneByOne(Faulty):
    def copy_kv(self, sources, destinations):
        for index in range(len(sources)):
            super().copy_kv(sources[index : index + 1], destinations[index : index + 1])


class TakesATreeForAChain(Faulty):
    def forward(self, batch):
        if batch.parents is not None:
            batch = replace(batch, positions=batch.kv_positions, kv_positions=None, parents=None)
        return super().forward(batch)


class TakesAnything(Faulty):
    def forward(self, batch):
        try:
            return super().forward(batch)
        except ValueError:
            return None


class PromisesAnyMemory(Faulty):
    def allocate_kv(self, blocks):
        super().allocate_kv(min(blocks, 100))


class DrawsInPython(Faulty):
    """Sound: it asks the reference."""

    def draw_coupled(self, logits, asked):
        drawn = []
        for rows in asked:
            params = SamplingParams(**asdict(rows.sampling))
            state = SamplingState(params, (), vocab_size=logits.shape[1], eos_ids=frozenset())
            seen = VerifyRows(state, logits[rows.rows], rows.drafted, rows.position)
            try:
                verdict = CoupledVerifier().judge(Draft(rows.drafted), seen, RequestChance(rows.key))
            except FloatingPointError:
                drawn.append(None)
                continue
            drawn.append(CoupledTokens(verdict.emitted, seen.entropies(len(verdict.emitted))))
        return drawn


class DrawsTheLikeliest(DrawsInPython):
    def draw_coupled(self, logits, asked):
        return super().draw_coupled(logits, [replace(rows, sampling=PlainSampling(0.0)) for rows in asked])


class DrawsWhatIsFilteredOut(DrawsInPython):
    def draw_coupled(self, logits, asked):
        bare = [replace(rows, sampling=PlainSampling(rows.sampling.temperature)) for rows in asked]
        return super().draw_coupled(logits, bare)


class DrawsBehindAMistake(DrawsInPython):
    def draw_coupled(self, logits, asked):
        alone = [replace(rows, drafted=(), rows=slice(rows.rows.start, rows.rows.start + 1)) for rows in asked]
        return [
            None if first is None else replace(first, tokens=(*rows.drafted, *first.tokens))
            for rows, first in zip(asked, super().draw_coupled(logits, alone), strict=True)
        ]


class DrawsNaN(DrawsInPython):
    def draw_coupled(self, logits, asked):
        return super().draw_coupled(np.nan_to_num(logits, posinf=0.0), asked)


@pytest.mark.parametrize("sound", [Faulty, DrawsInPython])
def test_the_control_itself_is_sound(sound):
    check_runner(sound())


FAULTY = [each for each in (*Faulty.__subclasses__(), *DrawsInPython.__subclasses__()) if each is not DrawsInPython]


@pytest.mark.parametrize("faulty", FAULTY)
def test_the_check_finds_a_faulty_runner(faulty):
    with pytest.raises((AssertionError, RuntimeError)):
        check_runner(faulty())
