// llama.cpp's logits.  llama_logits GGUF THREADS
// Reads lines "COUNT TOKEN TOKEN ..."; writes for each the text's logits as float32, row after row.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "llama.h"

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = 512;
    params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
    llama_context *context = llama_init_from_model(model, params);
    if (!context) return 1;
    const size_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int count; std::cin >> count;) {
        llama_memory_clear(llama_get_memory(context), true);
        llama_batch batch = llama_batch_init(count, 0, 1);
        batch.n_tokens = count;
        for (int place = 0; place < count; ++place) {
            std::cin >> batch.token[place];
            batch.pos[place] = place;
            batch.n_seq_id[place] = 1;
            batch.seq_id[place][0] = 0;
            batch.logits[place] = 1;
        }
        if (llama_decode(context, batch) != 0) return 1;
        for (int place = 0; place < count; ++place)
            std::fwrite(llama_get_logits_ith(context, place), sizeof(float), vocabulary, stdout);
        std::fflush(stdout);
        llama_batch_free(batch);
    }
}
