"""How many runs are in flight, and what server and workers take, looked at again and again."""

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
    """What was seen at one moment."""

    at: float
    """Seconds since the runs were queued."""
    in_flight: int
    """Runs that are running on the server."""
    ended: int
    memory: dict[str, float]
    """MB of the server with its database, and of each worker without the runs that it started."""


@dataclass(frozen=True)
class Disk:
    """What was on disk at one moment."""

    at: float
    ended: int
    sizes: dict[str, float]
    """MB by name."""
    checkouts: dict[str, int]
    """Of a host: its project and the checkouts of parameter sets."""


class Watch:
    """Looks at a server and workers."""

    def __init__(self, began, processes, places):
        self.looks = []
        self.disks = []
        self.warm = None
        """When one run of each parameter set had ended: from then on nothing new is made."""
        self._began, self._processes, self._places = began, processes, places

    def look(self, in_flight, ended, now=False):
        """Look at all, if it is time, or `now`."""
        at = time.monotonic() - self._began
        if not now and self.looks and at - self.looks[-1].at < LOOK_S:
            return
        memory = {name: sum(map(memory_of, pids)) for name, pids in self._processes().items()}
        if now or len(self.looks) % DISK_EVERY == 0:
            places = self._places()
            sizes = {name: sum(map(size_of, folders)) for name, folders in places.items()}
            checkouts = {name: 1 + len(list(folders[0].glob(CHECKOUTS))) for name, folders in places.items()}
            self.disks.append(Disk(at, ended, sizes, checkouts))
        self.looks.append(Look(at, in_flight, ended, memory))

    def in_flight_at(self, at):
        place = bisect.bisect(self.looks, at, key=lambda look: look.at)
        return self.looks[max(0, place - 1)].in_flight

    def memory(self, name):
        """MB at the begin, when all was warm, and at the end; a worker that was dead at a moment does not count."""
        found = [look.memory[name] for look in self.looks if look.at >= (self.warm or 0.0) and look.memory[name]]
        if not found:
            return 0.0, 0.0
        return median(found[:AROUND]), median(found[-AROUND:])

    def warm_disk(self):
        return next((disk for disk in self.disks if disk.at >= (self.warm or 0.0)), self.disks[-1])


def memory_of(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return float(psutil.Process(pid).memory_full_info().pss) / MB
    return 0.0


def with_children(pids):
    """Return these processes and all below them."""
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
