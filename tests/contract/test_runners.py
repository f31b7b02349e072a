"""Every runner in the registry, on every family of models, and runners that are wrong in one way each."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.runners import RunnerOptions, runners
from decodeloop.engine.runners.toy import ToyRunner
from decodeloop.testing import check_runner
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


def test_the_control_itself_is_sound():
    check_runner(Faulty())


@pytest.mark.parametrize("faulty", Faulty.__subclasses__())
def test_the_check_finds_a_faulty_runner(faulty):
    with pytest.raises((AssertionError, RuntimeError)):
        check_runner(faulty())
