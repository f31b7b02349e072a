"""Transformers in its own process.  huggingface.py MODEL_DIRECTORY DTYPE THREADS      Arms: plain; "lookup K"."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from lines import Block, Said, Work, serve
from transformers import AutoModelForCausalLM, GenerationConfig


class Clock:
    """A stopping criterion that stops nothing: it is asked after every step."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def __call__(self, ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.seen.append((ids.shape[1], time.perf_counter()))
        return torch.zeros(ids.shape[0], dtype=torch.bool)


class HuggingFace:
    def __init__(self, path: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        self._eos = self._model.generation_config.eos_token_id

    def __call__(self, work: Work) -> Block:
        started_s = time.perf_counter()
        said: list[Said] = []
        for start in range(0, len(work.prompts), work.at_once):
            said += self._answer(work.prompts[start : start + work.at_once], work)
        return Block(time.perf_counter() - started_s, said)

    @torch.inference_mode()
    def _answer(self, prompts: list[list[int]], work: Work) -> list[Said]:
        width, clock = max(map(len, prompts)), Clock()
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):  # padded on the left
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        config = GenerationConfig(
            max_new_tokens=work.tokens, do_sample=False, eos_token_id=self._eos if work.ends else None, pad_token_id=0
        )
        if work.arm != "plain":
            config.prompt_lookup_num_tokens = int(work.arm.split()[1])
        out = self._model.generate(ids, attention_mask=mask, generation_config=config, stopping_criteria=[clock])
        (first, first_s), (last, last_s) = clock.seen[0], clock.seen[-1]
        return [Said(row[width:].tolist(), last - first, last_s - first_s) for row in out]


if __name__ == "__main__":
    serve(lambda: HuggingFace(sys.argv[1], sys.argv[2], int(sys.argv[3])))
