"""Step times of hardware that nobody measured here: a roofline prior, and straight lines fitted elsewhere.

Simulations on these are labelled so: they say what arithmetic allows, not what a machine did.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Of one accelerator. efficiency: share of peak arithmetic that large batches reach."""

    name: str
    memory_bytes_per_s: float
    flops_per_s: float
    efficiency: float = 0.8


H100 = Hardware(name="H100 SXM, 16 bits", memory_bytes_per_s=3.35e12, flops_per_s=989e12)
HARDWARE = {
    "a100": Hardware(name="A100 SXM 80 GB, 16 bits", memory_bytes_per_s=2.039e12, flops_per_s=312e12),
    "h100": H100,
    "h200": Hardware(name="H200 SXM, 16 bits", memory_bytes_per_s=4.8e12, flops_per_s=989e12),
    "b200": Hardware(name="B200 SXM, 16 bits", memory_bytes_per_s=8e12, flops_per_s=2250e12),
}
"""By makers' data sheets: dense arithmetic, peak bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """kv_bytes: of a cached token, all layers."""

    name: str
    parameters: float
    kv_bytes: float
    bytes_per_parameter: float = 2.0


SHARPNESS = 3.0  # how softly memory-bound turns into compute-bound: a p-norm of the two


@dataclass(frozen=True, slots=True)
class Roofline:
    """A CostModel: reading all weights and the cache, against multiplying with every token."""

    hardware: Hardware
    model: Model
    accelerators: int = 1
    draft_share: float = 0.1  # of a plain step: a draft pass

    label = "roofline prior"

    def step_ms(self, tokens: int, context: int, sequences: int) -> float:
        memory_s = self.model.parameters * self.model.bytes_per_parameter / self.hardware.memory_bytes_per_s
        compute_s = 2.0 * self.model.parameters * tokens / (self.hardware.flops_per_s * self.hardware.efficiency)
        linear_s = float((memory_s**SHARPNESS + compute_s**SHARPNESS) ** (1.0 / SHARPNESS))
        cache_s = context * self.model.kv_bytes / self.hardware.memory_bytes_per_s
        return 1e3 * (linear_s + cache_s) / self.accelerators

    def draft_ms(self, drafter: str, depth: int, sequences: int) -> float:
        return depth * self.draft_share * self.step_ms(sequences, 0, sequences) if depth else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StraightLines:
    """A CostModel of published fits: verify = a + b tokens + c context; a whole draft = d + e drafted + f context.

    All in ms. draft_context_ms needs the context of the step, which a CostModel's draft_ms isn't told; `draft` is.
    """

    step: float
    token: float
    context: float
    draft_step: float = 0.0
    draft_token: float = 0.0
    draft_context: float = 0.0

    label = "fit published elsewhere"

    def step_ms(self, tokens: int, context: int, sequences: int) -> float:
        return self.step + self.token * tokens + self.context * context

    def draft_ms(self, drafter: str, depth: int, sequences: int) -> float:
        return self.draft(depth * sequences, 0)

    def draft(self, tokens: int, context: int) -> float:
        """ms to draft `tokens` in all, with `context` cached tokens in all."""
        return self.draft_step + self.draft_token * tokens + self.draft_context * context if tokens else 0.0
