"""The servers whose cost is compared: a mock, and what may stand before it, each a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from overhead_client import KEY

HERE = Path(__file__).parent
PATIENCE_S = 120.0
CPU_CLOCK = 2  # clock_getcpuclockid(3) of a process: ~pid << 3 | CPUCLOCK_SCHED


@dataclass
class Served:
    name: str
    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        """To the nanosecond, where psutil's are hundredths of seconds."""
        processes = (self.process, *self.process.children(recursive=True))
        return sum(time.clock_gettime((~each.pid << 3) | CPU_CLOCK) for each in processes)

    def rss_mib(self) -> float:
        each = (self.process, *self.process.children(recursive=True))
        return sum(one.memory_info().rss for one in each) / 2**20


def mock(port: int) -> list[str]:
    return [sys.executable, str(HERE / "mock_openai.py"), str(port)]


def floor(mock_port: int, port: int) -> list[str]:
    """Bytes there and back, unread: what no proxy costs less than."""
    return [sys.executable, str(HERE / "byte_proxy.py"), str(port), str(mock_port)]


@contextmanager
def running(name: str, port: int, command: Sequence[str], log: Path) -> Iterator[Served]:
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            _wait(name, port, process, log)
            yield Served(name, port, psutil.Process(process.pid))
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(name: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise SystemExit(f"{name} did not start:\n{log.read_text()[-2000:]}")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]


def ours(folder: Path, mock_port: int, port: int) -> list[str]:
    settings = {
        "model": None,
        "gateway": {
            "port": port,
            "api_keys": [KEY],
            "upstreams": {"mock": {"url": f"http://127.0.0.1:{mock_port}", "engine": "openai"}},
            "limits": {"max_concurrent_requests": 20000},
        },
    }
    path = folder / "ours.yaml"
    path.write_text(yaml.safe_dump(settings))
    return [sys.executable, "-m", "decodeloop", "serve", "--config", str(path)]


def litellm(program: str, folder: Path, mock_port: int, port: int) -> list[str]:
    row = {"model": "openai/mock", "api_base": f"http://127.0.0.1:{mock_port}/v1", "api_key": "none"}
    settings = {"model_list": [{"model_name": "mock", "litellm_params": row}], "general_settings": {"master_key": KEY}}
    path = folder / "litellm.yaml"
    path.write_text(yaml.safe_dump(settings))
    return [program, "--config", str(path), "--port", str(port), "--num_workers", "1"]
