"""The machine under the engine: its name, what its cores can do, and how much of it this process may use."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

from decodeloop.engine.cgroups import read_quota

ISA_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "bf16", "i8mm", "sve")
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Hardware:
    """cores: that this process may run on. quota_cores: what the CPU quota allows, None without one."""

    cpu: str
    architecture: str
    isa: tuple[str, ...]
    cores: int
    quota_cores: float | None
    memory_bytes: int
    available_bytes: int

    @property
    def threads(self) -> int:
        """One for each core that affinity and quota leave to this process; a part of a core counts as one."""
        return self.cores if self.quota_cores is None else max(1, min(self.cores, math.ceil(self.quota_cores)))

    @property
    def device(self) -> str:
        """One line for provenance and fingerprints."""
        return f"{self.cpu}, {self.cores} cores, {'+'.join(self.isa) or self.architecture}"


def read_hardware() -> Hardware:
    memory = psutil.virtual_memory()
    fields = _cpuinfo()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return Hardware(
        cpu=fields.get("model name") or platform.processor() or platform.machine(),
        architecture=platform.machine(),
        isa=tuple(flag for flag in ISA_FLAGS if flag in flags),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        quota_cores=read_quota(),
        memory_bytes=memory.total,
        available_bytes=memory.available,
    )


def _cpuinfo() -> dict[str, str]:
    """The first processor's fields; none where the system has no such file."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    fields: dict[str, str] = {}
    for name, value in pairs:
        fields.setdefault(name.strip(), value.strip())
    return fields
