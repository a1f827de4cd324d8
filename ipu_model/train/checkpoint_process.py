"""Writer of checkpoints in a companion process of a training (distributed/companion.py).

It is a process, not a thread: PopTorch's `execute` holds Python's GIL for the whole call (poptorch_core,
python/poptorch.cpp), so a thread could only write for milliseconds between two calls of up to a minute. Standard
library only, because it starts with every training that makes checkpoints.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Dict, Iterator, List, Tuple, Union

from ipu_model.core.files import new_folder, write_json
from ipu_model.distributed.process import Terminated, die_with_parent

HASHES = "sha256.json"
"""File name -> SHA-256 of the other files of a checkpoint."""
NICENESS = 10
"""Lower priority than the training."""

FileSpans = List[Tuple[str, int, int]]
"""Name, first byte and number of bytes of each file in the shared memory."""


def write_checkpoint(path: Path, memory: int, spans: FileSpans) -> None:
    """Write the files of a checkpoint, from shared memory (its descriptor), and their SHA-256 sums atomically."""
    size = max(first + length for _, first, length in spans)
    content = memoryview(mmap.mmap(memory, size, prot=mmap.PROT_READ))  # not closed: the traceback of an error reads it
    hashes: Dict[str, str] = {}
    with new_folder(path) as partial:
        for name, first, length in spans:
            part = content[first : first + length]
            try:
                (partial / name).write_bytes(part)
            except OSError as error:  # a failed write, unlike a failed open, does not name the file
                raise OSError(error.errno, error.strerror, error.filename or str(path / name)) from None
            hashes[name] = hashlib.sha256(part).hexdigest()
        write_json(partial / HASHES, hashes)


def write_checkpoints(requests: Iterator[Tuple[str, FileSpans]], memory: int) -> Iterator[Union[float, OSError]]:
    """Write each requested checkpoint in the companion; yield the seconds it took, or the error.

    The companion is killed together with the training. An unfinished checkpoint is then ignored, and the previous one
    is used.
    """
    try:
        die_with_parent(signal.SIGKILL)
    except Terminated:
        return
    os.nice(NICENESS)
    for path, spans in requests:
        began = time.perf_counter()
        try:
            write_checkpoint(Path(path), memory, spans)
            yield time.perf_counter() - began
        except OSError as error:
            yield error
