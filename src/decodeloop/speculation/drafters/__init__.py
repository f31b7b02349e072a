"""What proposes tokens. Built as `cls(setup)`."""

from __future__ import annotations

from decodeloop.registry import Registry
from decodeloop.speculation import Drafter

__all__ = ["drafters"]

drafters = Registry[Drafter](
    "drafters",
    {
        "ngram": "decodeloop.speculation.drafters.ngram:NgramDrafter",
        "suffix": "decodeloop.speculation.drafters.suffix:SuffixDrafter",
        "draft_model": "decodeloop.speculation.drafters.draft_model:ModelDrafter",
    },
)
