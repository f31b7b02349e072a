"""What the native runner's formats are held to on the default model, against float32 of the same weights."""

from decodeloop.evaluation.fidelity import FidelityBounds

# Name -> the runner's dtype, and bounds. AVX512-BF16 rounds inputs to bfloat16 as weights are, like any engine that
# multiplies by those instructions; what bf16 is held to allows for that, and int4 is far off it.
BOUNDS = {
    "bf16": ("bf16", FidelityBounds(divergence=1e-3, divergence_p99=3e-3, agreement=0.97, perplexity_ratio=1.004)),
    "int4": ("auto", FidelityBounds(divergence=8e-3, divergence_p99=8e-2, agreement=0.92, perplexity_ratio=1.01)),
}
