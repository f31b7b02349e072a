"""vLLM's CPU build in its own process and environment, bfloat16.  vllm_cpu.py MODEL_DIRECTORY      Arm: plain."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from lines import Block, Said, Work, serve


class Vllm:
    def __init__(self, path: str) -> None:
        from vllm import LLM, SamplingParams

        self._params = SamplingParams
        self._eos = json.loads((Path(path) / "generation_config.json").read_text())["eos_token_id"]
        self._model = LLM(
            model=path,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=2048,
            max_num_seqs=16,
            enforce_eager=True,
            enable_prefix_caching=False,
            disable_log_stats=False,
        )

    def __call__(self, work: Work) -> Block:
        started_s = time.perf_counter()
        said: list[Said] = []
        for start in range(0, len(work.prompts), work.at_once):
            said += self._answer(work.prompts[start : start + work.at_once], work)
        return Block(time.perf_counter() - started_s, said)

    def _answer(self, prompts: list[list[int]], work: Work) -> list[Said]:
        params = self._params(
            temperature=0.0,
            max_tokens=work.tokens,
            stop_token_ids=self._eos if work.ends else None,
            detokenize=False,
        )
        asked: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        said = []
        for output in self._model.generate(asked, params, use_tqdm=False):
            tokens, seen = list(output.outputs[0].token_ids), output.metrics
            said.append(Said(tokens, len(tokens) - 1, seen.last_token_ts - seen.first_token_ts))
        return said


if __name__ == "__main__":
    serve(lambda: Vllm(sys.argv[1]))
