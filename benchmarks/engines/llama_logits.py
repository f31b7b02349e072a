"""llama.cpp's logits, in its own environment.  llama_logits.py GGUF THREADS

Reads lines of JSON token ids; writes for each the text's logits as float32, row after row. Needs llama-cpp-py-sync.
"""

from __future__ import annotations

import json
import os
import sys

from llama_cpp_py_sync import Llama

CONTEXT = 512


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threads = int(sys.argv[2])
    model = Llama(sys.argv[1], n_ctx=CONTEXT, n_batch=CONTEXT, n_threads=threads, load_mode="none", n_gpu_layers=0)
    library, foreign = model._lib, model._ffi
    for line in sys.stdin:
        tokens = json.loads(line)
        model._clear_context_state()
        batch = library.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
        if library.llama_decode(model._ctx, batch) != 0:
            raise RuntimeError("llama_decode failed")
        for place in range(len(tokens)):
            row = library.llama_get_logits_ith(model._ctx, place)
            out.write(foreign.buffer(row, 4 * model.n_vocab))
        out.flush()
        library.llama_batch_free(batch)


if __name__ == "__main__":
    main()
