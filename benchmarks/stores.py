"""A PostgreSQL and a Redis of one's own: in a temporary directory, on free ports, gone afterwards.

Debian: apt-get install postgresql redis-server.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Server", "postgres", "redis"]

START_S = 60.0
USER = "nobody"  # PostgreSQL refuses root


@dataclass
class Server:
    """url: for its clients. command: starts it in the foreground. answers: whether it takes requests."""

    url: str
    command: list[str]
    answers: Callable[[], bool]
    process: subprocess.Popen[bytes] | None = None
    log: Path = field(default_factory=lambda: Path(os.devnull))

    def start(self) -> None:
        """Until it answers. Raises RuntimeError, with what it said, where it doesn't."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + START_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.command[0]} doesn't start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, to it and all its processes."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextmanager
def redis() -> Iterator[Server]:
    """Raises RuntimeError where it isn't installed."""
    program = _found("redis-server", [])
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="decodeloop-redis-", ignore_cleanup_errors=True) as directory:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "no"]
        server = Server(
            f"redis://127.0.0.1:{port}/0", [program, *options], lambda: _pongs(port), log=Path(directory) / "log"
        )
        yield from _running(server)


@contextmanager
def postgres() -> Iterator[Server]:
    """Raises RuntimeError where it isn't installed."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    initdb, program = _found("initdb", places), _found("postgres", places)
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="decodeloop-postgres-", ignore_cleanup_errors=True) as directory:
        data = f"{directory}/data"
        os.chmod(directory, 0o755)
        os.mkdir(data, 0o700)
        as_user: list[str] = []
        if os.getuid() == 0:
            account = pwd.getpwnam(USER)
            os.chown(data, account.pw_uid, account.pw_gid)
            as_user = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
        made = [
            *as_user,
            initdb,
            "-D",
            data,
            "-U",
            "decodeloop",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        subprocess.run(made, check=True, capture_output=True, cwd="/")
        options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off"}
        options |= {"shared_buffers": "16MB", "max_connections": 60, "autovacuum": "off"}
        command = [
            *as_user,
            program,
            "-D",
            data,
            *(part for name in options for part in ("-c", f"{name}={options[name]}")),
        ]
        server = Server(
            f"postgresql://decodeloop@127.0.0.1:{port}/postgres",
            command,
            lambda: _pg_answers(port),
            log=Path(directory) / "log",
        )
        yield from _running(server)


def _running(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _found(name: str, places: list[Path]) -> str:
    found = next((str(place / name) for place in places if (place / name).exists()), None) or shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed: apt-get install postgresql redis-server")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pongs(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(16).startswith(b"+PONG")
    return False


def _pg_answers(port: int) -> bool:
    """It answers a request for SSL by N once it is there; it takes clients when it says so for a session."""
    startup = b"user\0decodeloop\0database\0postgres\0\0"
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall((len(startup) + 8).to_bytes(4, "big") + (196608).to_bytes(4, "big") + startup)
        return connection.recv(1) == b"R"
    return False
