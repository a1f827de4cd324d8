"""What server and workers take of memory and disk, looked at again and again."""

import contextlib
import subprocess
import time
from dataclasses import dataclass
from statistics import median

import psutil

LOOK_S = 10.0
AROUND = 5
"""Looks whose median says what is taken: a process that has just started takes less."""


@dataclass(frozen=True)
class Look:
    at: float
    """Seconds since the runs were queued."""
    ended: int
    sizes: dict[str, float]
    """MB by name; 0 of a process that was dead at this moment."""


class Watch:
    """Looks at the sizes that a function gives by name."""

    def __init__(self, began, measure):
        self.looks, self._began, self._measure = [], began, measure
        self.warm = None
        """When one run of each parameter set had ended: from then on nothing new is made."""

    def look(self, ended, now=False):
        """Look at all, if it is time, or `now`."""
        at = time.monotonic() - self._began
        if now or not self.looks or at - self.looks[-1].at >= LOOK_S:
            self.looks.append(Look(at, ended, self._measure()))

    def sizes(self, name):
        """MB at the begin, when all was warm, and at the end."""
        sizes = [look.sizes[name] for look in self.looks if look.at >= (self.warm or 0.0) and look.sizes[name]]
        return (median(sizes[:AROUND]), median(sizes[-AROUND:])) if sizes else (0.0, 0.0)


def memory_of(*pids):
    """MB of these processes."""
    size = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            size += psutil.Process(pid).memory_full_info().pss / 2**20
    return size


def disk_of(*folders):
    """MB on disk of all files below these folders, each counted once, whatever its names."""
    done = subprocess.run(["du", "-sck", *map(str, folders)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return int(done.stdout.split()[-2]) / 1024  # files may go meanwhile


def with_children(pids):
    """Return these processes and all below them."""
    every = list(pids)
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            every += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return every
