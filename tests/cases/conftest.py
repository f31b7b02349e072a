"""What the cases share: the engine's test rig, and tiny real models behind real runners."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
