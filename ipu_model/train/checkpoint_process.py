"""Writes checkpoints beside a training: `python -m ipu_model.train.checkpoint_process FD`, started by saving.py.

A process and no thread: PopTorch's `execute` keeps Python's lock for the whole call (poptorch_core,
python/poptorch.cpp), so a thread would write for milliseconds between two calls of up to a minute. Standard library
only, as it starts beside every training that makes checkpoints.

Each line of its input asks for one, {"path": ".../step-00001000", "files": [["model.safetensors", 0, 1234], ...]}: the
names with the places of their bytes in the memory FD, which the training has, too. It answers with a line,
{"seconds": 0.8}, or {"errno": 28, "strerror": ..., "filename": ...} where it could not be written. It ends with its
input, and is killed with the training: then what it was writing is none, and the checkpoint before serves.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

from ipu_model.distributed.process import Terminated, die_with_parent
from ipu_model.files import new_folder, write_json

HASHES = "sha256.json"
"""File name -> SHA-256 of the other files of a checkpoint."""
BEHIND = 10
"""Niceness: the training goes first."""

USAGE_TEXT = """usage: python -m ipu_model.train.checkpoint_process FD
Writes the checkpoints of a training, which starts this; FD is memory that both see.
"""

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


def main() -> None:
    """Write what is asked for until nobody asks any more."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE_TEXT)
        return
    memory = int(sys.argv[1])
    try:
        die_with_parent(signal.SIGKILL)
    except Terminated:
        return
    os.nice(BEHIND)
    for line in sys.stdin:
        asked: Dict[str, Any] = json.loads(line)
        began = time.perf_counter()
        try:
            write_checkpoint(Path(asked["path"]), memory, asked["files"])
            answer: Dict[str, Any] = {"seconds": time.perf_counter() - began}
        except OSError as error:
            answer = {"errno": error.errno, "strerror": error.strerror, "filename": error.filename}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
