"""What server and workers take of memory and disk, looked at again and again."""

import bisect
import contextlib
import os
import time
from dataclasses import dataclass
from statistics import median

import psutil

MB = 2**20
LOOK_S = 5.0
DISK_EVERY = 6
"""Looks at memory for each look at disks, which takes some tenths of a second."""
AROUND = 5
"""Looks whose median says what a process takes: one that has just started takes less."""
CHECKOUTS = "podium/runs/checkouts/*"


@dataclass(frozen=True)
class Look:
    """MB of memory, by name; a worker is without the runs that it started."""

    at: float
    """Seconds since the runs were queued."""
    memory: dict[str, float]


@dataclass(frozen=True)
class Disk:
    """MB on disk, by name, with the project and the checkouts of parameter sets of each host."""

    at: float
    ended: int
    sizes: dict[str, float]
    checkouts: dict[str, int]


class Watch:
    """Looks at the processes and places that two functions give by name."""

    def __init__(self, began, processes, places):
        self.looks, self.disks = [], []
        self.warm = None
        """When one run of each parameter set had ended: from then on nothing new is made."""
        self._began, self._processes, self._places = began, processes, places

    def look(self, ended, now=False):
        """Look at all, if it is time, or `now`."""
        at = time.monotonic() - self._began
        if not now and self.looks and at - self.looks[-1].at < LOOK_S:
            return
        if now or len(self.looks) % DISK_EVERY == 0:
            places = self._places()
            sizes = {name: sum(map(size_of, folders)) for name, folders in places.items()}
            checkouts = {name: 1 + len(list(folders[0].glob(CHECKOUTS))) for name, folders in places.items()}
            self.disks.append(Disk(at, ended, sizes, checkouts))
        memory = {name: sum(map(memory_of, pids)) for name, pids in self._processes().items()}
        self.looks.append(Look(at, memory))

    def memory(self, name):
        """MB at the begin, when all was warm, and at the end; a worker that was dead at a moment does not count."""
        found = [look.memory[name] for look in self.looks if look.at >= (self.warm or 0.0) and look.memory[name]]
        return (median(found[:AROUND]), median(found[-AROUND:])) if found else (0.0, 0.0)

    def warm_disk(self):
        place = bisect.bisect_left(self.disks, self.warm or 0.0, key=lambda disk: disk.at)
        return self.disks[min(place, len(self.disks) - 1)]


def memory_of(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).memory_full_info().pss / MB
    return 0.0


def with_children(pids):
    found = list(pids)
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return found


def size_of(folder):
    """MB on disk of all files below a folder, each counted once, whatever its names."""
    seen = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                state = os.lstat(os.path.join(parent, name))
                seen[state.st_dev, state.st_ino] = state.st_blocks * 512
    return sum(seen.values()) / MB
