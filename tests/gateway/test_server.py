"""A gateway's process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from decodeloop.gateway import server

class Said:
    def run(self, sockets):
        print(*resource.getrlimit(resource.RLIMIT_NOFILE))

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
server.build_server = lambda app, settings: Said()
server.serve(None, None, None)
"""


def test_it_takes_all_the_file_descriptors_it_may_have() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    soft, hard = done.stdout.split()
    assert soft == hard != "64"
