"""A gateway in a process of its own, for benchmarks that ask one over HTTP."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

PATIENCE_S = 180.0


@contextmanager
def gateway(folder: Path, settings: Mapping[str, Any]) -> Iterator[str]:
    """`decodeloop serve --config` with `settings`, at a free port; yields its URL once it is ready."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump({**settings, "gateway": {**settings.get("gateway", {}), "port": port}}))
    with (folder / "gateway.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "decodeloop", "serve", "--config", str(path)], stdout=log, stderr=log
        )
        try:
            _wait(f"http://127.0.0.1:{port}/ready", process, folder / "gateway.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as got:
                if got.status == 200:
                    return
        except OSError:
            time.sleep(0.3)
    raise SystemExit(f"the gateway is not ready:\n{log.read_text()[-2000:]}")
