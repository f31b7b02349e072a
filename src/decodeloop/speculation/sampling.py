"""The only place where temperature, top-k, top-p, min-p, penalties, bans and grammars shape a distribution."""

from decodeloop.speculation.chance import Chance, RequestChance
from decodeloop.speculation.distribution import Distribution, NothingLeft
from decodeloop.speculation.logprobs import log_probabilities, top_log_probabilities
from decodeloop.speculation.state import SamplingState, TokenMatcher

__all__ = [
    "Chance",
    "Distribution",
    "NothingLeft",
    "RequestChance",
    "SamplingState",
    "TokenMatcher",
    "log_probabilities",
    "top_log_probabilities",
]
