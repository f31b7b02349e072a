"""Two requests in one step, whose drafts may decide about each other: the law of both texts together."""

from itertools import product

from decodeloop.testing import TableRows, branches, continued, sampled_draft, target_law, total_variation

LENGTH = 2


class Elsewhere:
    """A second request's randomness: the same Branch, at positions of its own."""

    def __init__(self, chance):
        self._chance = chance

    def coupled(self, p, position):
        return self._chance.coupled(p, 1000 + position)

    def accept(self, probability, position, start):
        return self._chance.accept(probability, 1000 + position, 1000 + start)

    def draw(self, probs, position, start):
        return self._chance.draw(probs, 1000 + position, 1000 + start)

    def draft(self, q, position, start):
        return self._chance.draft(q, 1000 + position, 1000 + start)


def joint_distance(verifier, targets, qs, submit):
    """From two plain texts. submit: the two drafts, of LENGTH tokens -> what is verified of each."""

    def said(chance):
        chances = (chance, Elsewhere(chance))
        drafts = [sampled_draft(c, q, LENGTH) for c, q in zip(chances, qs, strict=True)]
        return tuple(
            verifier.judge(draft, TableRows(target, draft.tokens), c).emitted
            for draft, target, c in zip(submit(drafts), targets, chances, strict=True)
        )

    joint = {}
    for (one, other), probability in branches(said):
        for a, rest_a in continued(one, targets[0], LENGTH):
            for b, rest_b in continued(other, targets[1], LENGTH):
                joint[a + b] = joint.get(a + b, 0.0) + probability * rest_a * rest_b
    laws = [target_law(target, LENGTH) for target in targets]
    return total_variation(joint, {a + b: laws[0][a] * laws[1][b] for a, b in product(*laws)})
