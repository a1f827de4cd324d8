"""The memory that a host and its limits allow, from made-up files of the kernel."""

import resource

import pytest

from ipu_model.core.memory import free_memory, memory_limit
from ipu_model.core.units import format_count, format_duration

MEMINFO = {"proc/meminfo": "MemTotal:  8000 kB\nMemAvailable:  4000 kB\n"}
CGROUP = {
    "proc/self/cgroup": "0::/pod/job\n",
    "sys/fs/cgroup/pod/job/memory.max": "max\n",
    "sys/fs/cgroup/pod/job/memory.current": "900000\n",
    "sys/fs/cgroup/pod/memory.max": "2000000\n",
    "sys/fs/cgroup/pod/memory.current": "1500000\n",
    "sys/fs/cgroup/pod/memory.stat": "anon 5\ninactive_file 200000\n",
}
OLD_CGROUP = {
    "proc/self/cgroup": "5:cpu:/\n4:memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000000\n",
    "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 7\n",
}


@pytest.mark.parametrize(
    ("files", "limit", "total", "free"),
    [
        ({}, None, None, None),
        (MEMINFO, None, 8192000, 4096000),
        ({**MEMINFO, **CGROUP}, None, 2000000, 700000),
        ({**MEMINFO, **OLD_CGROUP}, None, 3000000, 2000007),
        (MEMINFO, 5000000, 5000000, 4096000),
        ({}, 5000000, 5000000, None),
    ],
)
def test_the_least_of_host_cgroups_and_limits_counts(files, limit, total, free, tmp_path, monkeypatch):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    bound = resource.RLIM_INFINITY if limit is None else limit
    monkeypatch.setattr(resource, "getrlimit", lambda which: (bound, bound))
    assert memory_limit(tmp_path) == total
    assert free_memory(tmp_path) == free
    if total is not None:
        assert memory_limit(tmp_path, others=1000) == (total if total == limit else total - 1000)


def test_counts_and_times_are_for_people():
    counts = [(2, "blank lines skipped"), (1, "entries"), (1, "answers whose spaces are not at answer_start")]
    texts = ["2 blank lines skipped", "1 entry", "1 answer whose spaces are not at answer_start"]
    assert [format_count(*count) for count in counts] == texts
    assert [format_duration(seconds) for seconds in (15, 135, 7500)] == ["15 s", "2 min 15 s", "2 h 05 min"]
