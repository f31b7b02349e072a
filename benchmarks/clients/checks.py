"""Runs a client's checks, one JSON line each. Imported by scripts that run in environments of their own."""

import json
from collections.abc import Callable, Sequence


def run(checks: Sequence[Callable[[], None]]) -> None:
    for check in checks:
        try:
            check()
            print(json.dumps({"check": check.__name__, "ok": True}))
        except Exception as error:
            print(json.dumps({"check": check.__name__, "ok": False, "why": f"{type(error).__name__}: {error}"[:300]}))
