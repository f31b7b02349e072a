"""Part of the tree organization > user > agent > capability, as grants and limits name it."""

from __future__ import annotations

from dataclasses import dataclass

from decodeloop.types import Identity

__all__ = ["LEVELS", "Scope"]

LEVELS = ("organization", "user", "agent", "capability")

EACH = "*"


@dataclass(frozen=True, slots=True)
class Scope:
    """Identities: by level a name, "" (all, taken together) or "*" (all, each on its own)."""

    organization: str = ""
    user: str = ""
    agent: str = ""
    capability: str = ""

    def covers(self, identity: Identity) -> bool:
        return (
            (self.organization in _ALL or self.organization == identity.organization)
            and (self.user in _ALL or self.user == identity.user)
            and (self.agent in _ALL or self.agent == identity.agent)
            and (self.capability in _ALL or self.capability == identity.capability)
        )

    def share(self, identity: Identity) -> str:
        """The name of the part that `identity` shares with others: "*" stands for its own name, "" for everyone."""
        names = []
        for level in LEVELS:
            wanted = getattr(self, level)
            own = getattr(identity, level) if wanted else ""
            names.append(own.replace("%", "%25").replace("/", "%2F"))  # no name reaches into another's part
        return "/".join(names)


_ALL = frozenset({"", EACH})
