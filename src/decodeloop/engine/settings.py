"""The engine's section of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Every bound of the embedded engine. A token's cost in a step is 1, drafted or not."""

    runner: str = "auto"  # auto: the fastest that loads here
    dtype: str = "auto"
    device: str = "cpu"
    threads: int = 0  # 0: all the cores this process may use
    fixed_shape: bool = False
    block_tokens: int = 16
    max_context: int | None = None  # None: the model's own, as far as kv_memory_mb reaches
    max_sequences: int = 32
    max_waiting: int = 256
    max_step_tokens: int = 256
    prefill_chunk: int = 128  # of one step's tokens, while others decode
    kv_memory_mb: int = 1024
    draft_memory_mb: int = 512
    prefix_caching: bool = True
    verifier: str = "coupled"
    drafters: tuple[str, ...] = ("ngram", "suffix")
    drafter_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    policy: str = "adaptive"
    draft_len: int = 4
    max_draft_len: int = 12
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    shadow_len: int | None = None  # how far free drafters are scored when not played; None: as far as the policy learns
    record_token_ids: bool = False
    default_max_tokens: int | None = None  # for requests that name none; None: up to the context limit

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting and its bounds."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and not isinstance(value, bool):
                least, most = BOUNDS.get(each.name, (1, MOST))
                if not least <= value <= most:
                    raise ValueError(f"{each.name} must be between {least} and {most}, not {value}")
        if self.draft_len > self.max_draft_len:
            raise ValueError(f"draft_len {self.draft_len} is above max_draft_len {self.max_draft_len}")
        if self.max_step_tokens < self.max_sequences:
            raise ValueError(
                f"max_step_tokens {self.max_step_tokens} can't hold a token of each of max_sequences "
                f"{self.max_sequences}"
            )
        if len(set(self.drafters)) < len(self.drafters):
            raise ValueError(f"drafters {', '.join(self.drafters)}: each can be named once")


MOST = 1 << 30
BOUNDS = {
    "kv_memory_mb": (0, MOST),
    "draft_memory_mb": (0, MOST),
    "threads": (0, 1024),
    "draft_len": (0, 256),
    "max_draft_len": (0, 256),
    "shadow_len": (0, 256),
    "block_tokens": (1, 1024),
    "max_context": (1, 1 << 24),
}
