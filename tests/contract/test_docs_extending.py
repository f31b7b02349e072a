"""The drafter in docs/extending.md is whole: it passes the check that the document names."""

import re
from pathlib import Path

from decodeloop.testing import check_drafter, drafter_setup

TEXT = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()


def test_the_example_is_a_drafter():
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", TEXT, re.S)[1], names)
    check_drafter(lambda: names["RepeatDrafter"](drafter_setup(32)), 32)
