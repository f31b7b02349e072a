"""CPU quotas as files show them: made-up trees of both versions, and the machine's own."""

import pytest

from decodeloop.engine.cgroups import read_quota

V1 = "33 32 0:30 / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}"
V2 = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
OTHERS = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n34 32 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"


def tree(root, mounts, groups, files):
    for path, text in {"proc/self/mountinfo": f"{OTHERS}\n{mounts}", "proc/self/cgroup": groups, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")
    return root


def v1(directory, quota, period="100000"):
    return {f"{directory}/cpu.cfs_quota_us": quota, f"{directory}/cpu.cfs_period_us": period}


def v2(directory, text):
    return {f"{directory}/cpu.max": text}


CPU, TOP = "sys/fs/cgroup/cpu", "sys/fs/cgroup"
CASES = {
    "v2": (V2, "0::/", v2(TOP, "50000 100000"), 0.5),
    "v2, no limit": (V2, "0::/", v2(TOP, "max 100000"), None),
    "v2, no controller": (V2, "0::/", {}, None),
    "v2, nonsense": (V2, "0::/", v2(TOP, "nonsense"), None),
    "v2, own group": (V2, "0::/a/b", v2(f"{TOP}/a/b", "150000 100000"), 1.5),
    "v2, a group above": (V2, "0::/a/b", {**v2(f"{TOP}/a", "20000 10000"), **v2(f"{TOP}/a/b", "max 100000")}, 2.0),
    "v2, another's group": (V2, "0::/a/b", v2(f"{TOP}/a/c", "50000 100000"), None),
    "v2, the tightest": (V2, "0::/a/b", {**v2(f"{TOP}/a", "1 2"), **v2(f"{TOP}/a/b", "3 2")}, 0.5),
    "v1": (V1.format(name="cpu"), "1:cpu:/", v1(CPU, "50000"), 0.5),
    "v1, no limit": (V1.format(name="cpu"), "1:cpu:/", v1(CPU, "-1"), None),
    "v1, no period": (V1.format(name="cpu"), "1:cpu:/", {f"{CPU}/cpu.cfs_quota_us": "50000"}, None),
    "v1, with accounting": (
        V1.format(name="cpu,cpuacct"),
        "4:cpu,cpuacct:/job",
        v1("sys/fs/cgroup/cpu,cpuacct/job", "25000", "50000"),
        0.5,
    ),
    "v1, a group above": (V1.format(name="cpu"), "1:cpu:/a/b", {**v1(f"{CPU}/a", "30000"), **v1(CPU, "-1")}, 0.3),
    "v1, seen from a container": (
        V1.format(name="cpu").replace(" / /sys", " /docker/1f /sys"),
        "1:cpu:/docker/1f/inner",
        {**v1(CPU, "90000"), **v1(f"{CPU}/inner", "40000")},
        0.4,
    ),
    "v1, the mount shows another group": (
        V1.format(name="cpu").replace(" / /sys", " /docker/1f /sys"),
        "1:cpu:/",
        v1(CPU, "90000"),
        0.9,
    ),
    "both": (
        f"{V1.format(name='cpu')}\n{V2.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')}",
        "1:cpu:/a\n0::/b",
        {**v1(f"{CPU}/a", "70000"), **v2(f"{TOP}/unified/b", "60000 100000")},
        0.6,
    ),
    "another controller's group is no CPU quota": (V1.format(name="cpu"), "4:cpuset:/a", v1(f"{CPU}/a", "10000"), None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_quota_that_binds(tmp_path, case):
    mounts, groups, files, cores = CASES[case]
    assert read_quota(tree(tmp_path, mounts, groups, files)) == cores


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert read_quota(tmp_path) is None


def test_this_machine_can_be_read():
    cores = read_quota()
    assert cores is None or cores > 0
