"""What the native runner's formats are held to on the default model, against float32 of the same weights."""

from decodeloop.evaluation.fidelity import FidelityBounds

# Name -> the runner's dtype, and bounds.
BOUNDS = {
    "bf16": ("bf16", FidelityBounds(divergence=3e-4, divergence_p99=3e-3, agreement=0.985, perplexity_ratio=1.004)),
    "int4": ("auto", FidelityBounds(divergence=8e-3, divergence_p99=8e-2, agreement=0.92, perplexity_ratio=1.01)),
}
