"""How much CPU the control groups around this process allow it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def read_quota(root: Path = Path("/")) -> float | None:
    """Cores that the tightest CPU quota of this process's control groups allows, version 1 or 2; None without one.

    root: where the file system begins. A quota binds all that is below it, so every group up to the top of the
    hierarchy counts, as far as it can be seen from here.
    """
    quotas = [quota for top, group in _groups(root) for quota in _quotas(top, group)]
    return min(quotas, default=None)


def _groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """(top, this process's group under it) of every mounted hierarchy that may hold CPU quotas."""
    memberships = [line.split(":", 2) for line in _read(root / "proc/self/cgroup").splitlines()]
    for line in _read(root / "proc/self/mountinfo").splitlines():
        _, _, _, shown, mount_point, *_ = fields = line.split()
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        for hierarchy, controllers, path in memberships:
            unified = kind == "cgroup2" and hierarchy == "0"
            if unified or (kind == "cgroup" and "cpu" in controllers.split(",") and "cpu" in options.split(",")):
                top = root / mount_point.lstrip("/")
                yield top, top / _below(shown, path)


def _below(shown: str, path: str) -> PurePosixPath:
    """`path` from `shown`, the group that a mount has at its top; the top itself where the path is out of its sight."""
    group = PurePosixPath(path)
    return group.relative_to(shown) if group.is_relative_to(shown) else PurePosixPath()


def _quotas(top: Path, group: Path) -> Iterator[float]:
    """Of `group` and the groups above it, as far as `top`."""
    for directory in (group, *group.parents):
        older = (_read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us"))
        quota, period, *_ = [*(_read(directory / "cpu.max") or " ".join(older)).split(), "max", "max"]
        if quota.isdigit() and period.isdigit():  # not "max", not -1, not missing
            yield int(quota) / int(period)
        if directory == top:
            return


def _read(path: Path) -> str:
    """Empty where it can't be read: not every system has it, nor every container."""
    try:
        return path.read_text()
    except OSError:
        return ""
