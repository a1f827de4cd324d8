"""Functions to map over processes."""

import os
import signal
import time

from tasks.stage.errors import InputError


def slow_first(item: int) -> int:
    if item == 0:
        time.sleep(0.2)  # later items finish earlier
    return item * 10


def fails_on_three(item: int) -> int:
    if item == 3:
        raise InputError("three was found, another is required")
    return item


def dies_on_three(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def process_id(item: int) -> int:
    return os.getpid()
