"""What writes checkpoints next to a training, in a companion (distributed/companion.py).

A process and not a thread: PopTorch's `execute` keeps Python's lock for the whole call (poptorch_core,
python/poptorch.cpp), so a thread would write for milliseconds between two calls of up to a minute. Standard library
only, as it starts next to every training that makes checkpoints.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Dict, Iterator, List, Tuple, Union

from ipu_model.distributed.process import Terminated, die_with_parent
from ipu_model.files import new_folder, write_json

HASHES = "sha256.json"
"""File name -> SHA-256 of the other files of a checkpoint."""
BEHIND = 10
"""Niceness: the training goes first."""

Places = List[Tuple[str, int, int]]
"""Name, first byte and number of bytes of each file."""


def write_checkpoint(path: Path, memory: int, places: Places) -> None:
    """Write the files of a checkpoint and the list of their sums, whole or not at all.

    Args:
        path: the folder that appears.
        memory: descriptor of what holds the bytes.

    Raises:
        OSError: disk full or not writable.
    """
    size = max(first + length for _, first, length in places)
    content = memoryview(mmap.mmap(memory, size, prot=mmap.PROT_READ))  # not closed: the traceback of an error reads it
    hashes: Dict[str, str] = {}
    with new_folder(path) as partial:
        for name, first, length in places:
            part = content[first : first + length]
            try:
                (partial / name).write_bytes(part)
            except OSError as error:  # it knows no name where opening went well
                raise OSError(error.errno, error.strerror, error.filename or str(path / name)) from None
            hashes[name] = hashlib.sha256(part).hexdigest()
        write_json(partial / HASHES, hashes)


def write_checkpoints(requests: Iterator[Tuple[str, Places]], memory: int) -> Iterator[Union[float, OSError]]:
    """Answers of a companion: write each checkpoint, and give the seconds that it took, or why it could not be written.

    The companion is killed with the training: then what it was writing is not a checkpoint, and the one before serves.

    Args:
        requests: Folder of each, and the places of its files in the memory.
        memory: descriptor of what holds the bytes, which the training has, too.
    """
    try:
        die_with_parent(signal.SIGKILL)
    except Terminated:
        return
    os.nice(BEHIND)
    for path, places in requests:
        began = time.perf_counter()
        try:
            write_checkpoint(Path(path), memory, places)
            yield time.perf_counter() - began
        except OSError as error:
            yield error
