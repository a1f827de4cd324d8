"""The memory that a host and its limits allow, from made-up files of the kernel."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Dict, Optional

import pytest

from ipu_model.core.memory import memory_limit

MEMINFO = {"proc/meminfo": "MemTotal:  8000 kB\nMemAvailable:  4000 kB\n"}
CGROUP = {
    "proc/self/cgroup": "0::/pod/job\n",
    "sys/fs/cgroup/pod/job/memory.max": "max\n",
    "sys/fs/cgroup/pod/memory.max": "2000000\n",
}
OLD_CGROUP = {"proc/self/cgroup": "4:memory:/job\n", "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000000\n"}


@pytest.mark.parametrize(
    ("files", "limit", "found"),
    [
        ({}, None, None),
        (MEMINFO, None, 8192000),
        ({**MEMINFO, **CGROUP}, None, 2000000),
        ({**MEMINFO, **OLD_CGROUP}, None, 3000000),
        (MEMINFO, 5000000, 5000000),
        ({}, 5000000, 5000000),
    ],
)
def test_the_least_of_host_cgroups_and_limits_counts(
    files: Dict[str, str], limit: Optional[int], found: Optional[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    bound = resource.RLIM_INFINITY if limit is None else limit
    monkeypatch.setattr(resource, "getrlimit", lambda which: (bound, bound))
    assert memory_limit(tmp_path) == found
    if found is not None:
        assert memory_limit(tmp_path, others=1000) == (found if found == limit else found - 1000)
