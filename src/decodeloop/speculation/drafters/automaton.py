"""A suffix automaton that counts: every context of a growing text, how often it came and what followed it most.

Blumer et al. 1985 (the automaton, online, linear time); the counts and the commonest successors are our own addition.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

ROOT = 0
NONE = -1
STATE_BYTES = 7 * 4  # one entry in each of the seven arrays below
BRANCH_BYTES = 140  # of a transition beside a state's first, its share of the dict included


@dataclass(slots=True)
class Context:
    """A place in an automaton: the last `length` tokens of something, as the state that stands for them.

    size: of the automaton when the place was found; a bigger one may know a longer match.
    """

    state: int = ROOT
    length: int = 0
    size: int = 0


class SuffixAutomaton:
    """Implements Automaton. Of one text or, with `begin_text` between them, of several; nothing matches across texts.

    A state stands for contexts that ended at the same places so far. Reading a token is O(1) amortised in the text's
    length, and O(depth) at worst: counts are kept of contexts of at most `depth` tokens.

    Per state: the length of its longest context; link (to the state of the longest context that is a suffix of its
    contexts and came elsewhere too); count (how often it came); followed (how often something came after it); best
    (the token that came after it most often, the latest among equals); and its transitions, most states having one:
    the first in two arrays, the others in a dict.
    """

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth {depth} leaves no context to count")
        self.size = 0  # tokens read
        self._depth = depth
        self._length, self._link = array("i"), array("i")
        self._count, self._followed, self._best = array("i"), array("i"), array("i")
        self._token, self._target = array("i"), array("i")
        self._branches: dict[int, dict[int, int]] = {}
        self._branch_count = 0
        self._new_state(0)
        self.begin_text()

    def __len__(self) -> int:
        """The number of states: at most twice the tokens read, and one."""
        return len(self._link)

    def begin_text(self) -> None:
        self._last = ROOT
        self._end = Context()  # the text's last tokens, depth - 1 at most: the longest context whose successor counts

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._last = self._grow(token)
            self._tally(token)
            self.size += 1

    # contexts

    def nowhere(self) -> Context:
        return Context()

    def own_end(self, limit: int) -> Context:
        """The text's longest suffix, up to `limit` tokens, that came before."""
        place = self._end.state, self._end.length
        if place[0] == self._last:  # the one state whose contexts came only here
            link = self._link[self._last]
            place = (link, self._length[link]) if link != NONE else (ROOT, 0)
        return Context(*self._shortened(*place, limit), self.size)

    def advance(self, context: Context, tokens: Sequence[int], limit: int) -> None:
        """Move `context` on over `tokens`: to their longest suffix, up to `limit` tokens, that the texts hold."""
        state, length = self._shortened(context.state, context.length, limit)
        for token in tokens:
            while (target := self._step(state, token)) == NONE and state != ROOT:
                state = self._link[state]
                length = self._length[state]
            if target != NONE:
                state, length = self._shortened(target, length + 1, limit)
        context.state, context.length, context.size = state, length, self.size

    def likeliest(self, context: Context, count: int, floor: float) -> tuple[list[int], list[float]]:
        """What came after `context` most often, token by token: up to `count` tokens, and each one's score.

        The score is the product of the shares that the tokens up to there have among what followed their contexts;
        the run ends before it falls below `floor`. Where nothing followed yet (the text ends there), the longest
        shorter context that something followed goes on.
        """
        tokens: list[int] = []
        scores: list[float] = []
        state, score = context.state, 1.0
        while len(tokens) < count:
            while state != ROOT and self._best[state] == NONE:
                state = self._link[state]
            if state == ROOT:
                break
            token = self._best[state]
            target = self._step(state, token)
            score *= self._count[target] / self._followed[state]
            if score < floor:
                break
            tokens.append(token)
            scores.append(score)
            state = target
        return tokens, scores

    def memory_bytes(self) -> int:
        return len(self) * STATE_BYTES + self._branch_count * BRANCH_BYTES

    # growing

    def _grow(self, token: int) -> int:
        """The state of the whole text with `token` added."""
        last, length, link = self._last, self._length, self._link
        known = self._step(last, token)
        if known != NONE:  # an earlier text went the same way
            return known if length[known] == length[last] + 1 else self._split(known, last, token)
        added = self._new_state(length[last] + 1)
        state = last
        while state != NONE and (known := self._step(state, token)) == NONE:
            self._connect(state, token, added)
            state = link[state]
        if state == NONE:
            link[added] = ROOT
        elif length[known] == length[state] + 1:
            link[added] = known
        else:
            link[added] = self._split(known, state, token)
        return added

    def _split(self, state: int, before: int, token: int) -> int:
        """Part the contexts of `state` that are one longer than `before`'s, or shorter, from its longer ones."""
        twin = self._new_state(self._length[before] + 1)
        for column in (self._link, self._count, self._followed, self._best, self._token, self._target):
            column[twin] = column[state]
        if state in self._branches:
            self._branches[twin] = self._branches[state].copy()
            self._branch_count += len(self._branches[twin])
        self._link[state] = twin
        while before != NONE and self._step(before, token) == state:
            self._connect(before, token, twin)
            before = self._link[before]
        return twin

    def _tally(self, token: int) -> None:
        """`token` came after every suffix of the text: count the contexts of at most `depth` tokens that it ended."""
        count, best = self._count, self._best
        start, length = self._shortened(self._end.state, self._end.length, self._depth - 1)
        arrived, state = NONE, start
        while state != NONE:
            target = self._step(state, token)
            if target != arrived:  # contexts of several states may have ended in one
                count[target] += 1
                arrived = target
            self._followed[state] += 1
            rival = best[state]
            if rival != token and (rival == NONE or count[target] >= count[self._step(state, rival)]):
                best[state] = token
            state = self._link[state]
        self._end.state, self._end.length = self._shortened(self._step(start, token), length + 1, self._depth - 1)

    def _shortened(self, state: int, length: int, limit: int) -> tuple[int, int]:
        """Where the last `limit` tokens of a context are; also finds a context again whose state was split."""
        length = min(length, limit)
        while state != ROOT and length <= self._length[self._link[state]]:
            state = self._link[state]
        return state, length

    # transitions

    def _step(self, state: int, token: int) -> int:
        if self._token[state] == token:
            return self._target[state]
        branches = self._branches.get(state)
        return NONE if branches is None else branches.get(token, NONE)

    def _connect(self, state: int, token: int, target: int) -> None:
        if self._token[state] in (NONE, token):
            self._token[state], self._target[state] = token, target
            return
        branches = self._branches.setdefault(state, {})
        self._branch_count += token not in branches
        branches[token] = target

    def _new_state(self, length: int) -> int:
        self._length.append(length)
        self._count.append(0)
        self._followed.append(0)
        for column in (self._link, self._best, self._token, self._target):
            column.append(NONE)
        return len(self._link) - 1
