from dataclasses import replace

import pytest

from decodeloop.speculation import Draft, Verdict
from decodeloop.speculation.verifiers import verifiers
from decodeloop.speculation.verifiers.block import BlockVerifier
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.speculation.verifiers.rejection import RejectionVerifier
from decodeloop.testing import check_verifier
from decodeloop.types import Knowledge


@pytest.mark.parametrize("name", verifiers.names())
def test_verifier_keeps_the_contract(name):
    check_verifier(verifiers.load(name))


@pytest.mark.parametrize("name", ["block", "rejection"])
@pytest.mark.parametrize("draft", [Draft((0, 1), parents=(-1, -1)), Draft((0,), parents=(-1,))])
def test_a_verifier_of_chains_refuses_trees(name, draft):
    with pytest.raises(ValueError, match="tree"):
        verifiers.load(name)().judge(draft, None, None)


class AcceptsWhateverIsLikely(RejectionVerifier):
    def judge(self, draft, rows, chance):
        kept = 0
        while kept < len(draft.tokens) and rows[kept].prob(draft.tokens[kept]) > 0.2:
            kept += 1
        last = chance.draw(rows[kept].probs, rows.position(kept), rows.position(0))
        return Verdict(kept, (*draft.tokens[:kept], last))


class RecoversFromP(RejectionVerifier):
    def judge(self, draft, rows, chance):
        verdict = super().judge(draft, rows, chance)
        if verdict.accepted == len(draft.tokens):
            return verdict
        row = rows[verdict.accepted]
        return replace(verdict, emitted=(*verdict.emitted[:-1], chance.choose(row.probs)))


class FlipsACoinTwice(RejectionVerifier):
    def judge(self, draft, rows, chance):
        super().judge(draft, rows, chance)
        return super().judge(draft, rows, chance)


class AsksAhead(CoupledVerifier):
    def judge(self, draft, rows, chance):
        for i in range(len(draft.tokens) + 1):
            rows[i]
        return super().judge(draft, rows, chance)


class SaysMoreThanItMayAdmit(BlockVerifier):
    admits = Knowledge.SELF


class SpoilsQ(RejectionVerifier):
    def judge(self, draft, rows, chance):
        verdict = super().judge(draft, rows, chance)
        for row in draft.q or ():
            row[0] = 0.5
        return verdict


@pytest.mark.parametrize(
    ("faulty", "fault"),
    [
        (AcceptsWhateverIsLikely, "total variation"),
        (RecoversFromP, "total variation"),
        (FlipsACoinTwice, "twice"),
        (AsksAhead, "behind a token of probability 0"),
        (SaysMoreThanItMayAdmit, "cut at unlikely tokens: total variation"),
        (SpoilsQ, "q was changed"),
    ],
)
def test_the_check_finds_a_faulty_verifier(faulty, fault):
    with pytest.raises(AssertionError, match=fault):
        check_verifier(faulty)
