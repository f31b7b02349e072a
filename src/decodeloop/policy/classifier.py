"""Which class of work a prompt is, for requests that don't say: words, stems and pairs, and a logistic regression.

It sees the prompt and nothing else, and of a long one its beginning and its end. Where it isn't sure it says
general_chat. Weights come from `benchmarks/train_classifier.py`.
"""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, repeat
from struct import Struct
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from decodeloop.types import ChatPrompt, FloatArray, Prompt, RequestClass

CLASSES = tuple(RequestClass)
HEAD, TAIL = 384, 192  # characters of a text that are looked at
STEM = 5  # characters
SURE = 0.4  # probability below which a guess is none
SCHEMA = 1
LANE_ZERO = 128  # added to weights, so that no lane of a sum is negative
_TOKENS = re.compile(r"[^\W\d_]+|\d|[^\w\s]")
_ASCII_TOKENS = re.compile(r"[a-z]+|[^a-z_\s\x1c-\x1f]", re.ASCII)  # the same, of lower case: twice as fast


class Classifier:
    """names: the features. weights: [features, classes] int8, times `scale`; bias: [classes]."""

    def __init__(self, names: Sequence[str], weights: npt.NDArray[np.int8], scale: float, bias: FloatArray) -> None:
        """Raises ValueError for weights of another shape."""
        if weights.shape != (len(names), len(CLASSES)) or bias.shape != (len(CLASSES),):
            raise ValueError(f"classifier weights of shape {weights.shape}, not {(len(names), len(CLASSES))}")
        self._names = tuple(names)
        self._weights, self._scale, self._bias = weights, scale, bias
        self._biases: list[float] = bias.tolist()
        self._sums = Struct(f"<{1 + len(CLASSES)}I")
        self._size = self._sums.size
        biased = weights.astype(np.int64) + LANE_ZERO
        lanes = np.concatenate([np.ones((len(names), 1), np.int64), biased], axis=1).tolist()
        self._packed = {
            name: int.from_bytes(self._sums.pack(*lane), "little") for name, lane in zip(names, lanes, strict=True)
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> Classifier:
        """What `to_bytes` gave. Raises ValueError for anything else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                schema, classes = int(file["schema"]), [str(name) for name in file["classes"]]
                names, weights = str(file["names"]).split("\n"), file["weights"]
                scale, bias = float(file["scale"]), file["bias"]
        except (KeyError, OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
            raise ValueError(f"not a classifier's weights: {error}") from None
        if schema != SCHEMA or classes != list(CLASSES):
            raise ValueError("the classifier's weights are of another version")
        return cls(names, weights, scale, bias)

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        np.savez_compressed(
            file,
            schema=np.array(SCHEMA),
            classes=np.array([str(name) for name in CLASSES]),
            names=np.array("\n".join(self._names)),
            weights=self._weights,
            scale=np.array(self._scale),
            bias=self._bias,
        )
        return file.getvalue()

    def __call__(self, prompt: Prompt) -> RequestClass:
        """The class of a request that declares none. Token ids and empty prompts are general_chat."""
        if isinstance(prompt, ChatPrompt) and prompt.tools and prompt.tool_choice != "none":
            return RequestClass.TOOL_CALL
        found = self.guess(text_of(prompt))
        return RequestClass.GENERAL_CHAT if found is None else found

    def guess(self, text: str) -> RequestClass | None:
        """None: not sure."""
        scores = self._scores(text)
        most = max(scores)
        weight = sum(map(math.exp, [score - most for score in scores]))  # the likeliest has a share of 1 in it
        return CLASSES[scores.index(most)] if weight * SURE <= 1.0 else None

    def probabilities(self, text: str) -> FloatArray:
        """[classes], in the order of RequestClass."""
        scores = np.array(self._scores(text))
        likely = np.exp(scores - scores.max())
        return likely / likely.sum()  # type: ignore[no-any-return]

    def _scores(self, text: str) -> list[float]:
        """A feature's weights are lanes of one integer, its first lane a 1: one sum adds them all, and counts them."""
        total = sum(map(self._packed.get, features(text), repeat(0)))
        known, *sums = self._sums.unpack(total.to_bytes(self._size, "little"))
        scale, shift = self._scale / max(known, 1) ** 0.5, known * LANE_ZERO
        return [bias + (summed - shift) * scale for bias, summed in zip(self._biases, sums, strict=True)]


def features(text: str) -> set[str]:
    """Words and signs of a text's ends, the stems of long words, and neighbours."""
    seen = _ends(text)
    words = (_ASCII_TOKENS if seen.isascii() else _TOKENS).findall(seen)
    stems = [word[:STEM] for word in words]
    return {*words, *stems, *map(" ".join, pairwise(stems))}


def text_of(prompt: Prompt) -> str:
    """What a prompt asks, in words: the system's beginning and the last user's message. "" for token ids."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, ChatPrompt):
        return ""
    said = _said(reversed(prompt.messages), ("user",))
    told = _said(prompt.messages, ("system", "developer"))
    return f"{told[: HEAD // 2]}\n{said}" if told else said


def _said(messages: Iterable[Mapping[str, Any]], roles: Sequence[str]) -> str:
    """By the first of them in one of the roles."""
    for message in messages:
        if message.get("role") in roles:
            return _content(message)
    return ""


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)
    return ""


def _ends(text: str) -> str:
    """Lower case; no more of a long text is read than its ends."""
    cut = text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"
    return cut.lower()
