"""Checkpoints written beside the training: the state is copied to memory that another process writes to the disk."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

from torch import Tensor

from ipu_model.distributed.companion import end_in_words, reserve, shared_memory, start_companion
from ipu_model.memory import free_memory
from ipu_model.models.tensors import lay_out
from ipu_model.train.checkpoint_process import Places, write_checkpoint

ROOM = 2
"""Times the size of a checkpoint that memory must have free: for the copy, and for its files until they are on disk."""
ALIGNMENT = mmap.PAGESIZE
CHECKPOINT_PROCESS = "ipu_model.train.checkpoint_process"


class InTurn(Exception):
    """Checkpoints cannot be written beside the training; the message says why."""


class Beside:
    """One process that writes one checkpoint at a time.

    Attributes:
        path: Of the checkpoint under way; None while there is none.
        bytes: That the copy takes.
    """

    def __init__(self) -> None:
        """Start the process.

        Raises:
            InTurn: this system cannot do that.
        """
        self.path: Optional[Path] = None
        self.bytes = 0
        self._places: Places = []
        self._mapped: Optional[mmap.mmap] = None
        try:
            self._memory = shared_memory("podium-checkpoint", 0)
            self._process = start_companion(CHECKPOINT_PROCESS, str(self._memory), memory=self._memory)
        except OSError as error:
            raise InTurn(f"a process beside the training cannot be had ({error.strerror or error})") from None

    def start(self, path: Path, tensors: Mapping[str, Dict[str, Tensor]], texts: Mapping[str, bytes]) -> None:
        """Copy a state and have it written; none may be under way.

        Args:
            path: the folder that appears.
            tensors: by file and name.
            texts: the other files.

        Raises:
            InTurn: the memory for it is not free.
        """
        assert self.path is None
        layouts = {name: lay_out(inside) for name, inside in tensors.items()}
        sizes = {**{name: x.size for name, x in layouts.items()}, **{name: len(x) for name, x in texts.items()}}
        self._places, end = [], 0
        for name, size in sizes.items():
            self._places.append((name, end, size))
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self._make_room(end)
        assert self._mapped is not None
        for name, first, size in self._places:
            if name in layouts:
                layouts[name].copy_to(self._mapped, first, tensors[name])
            else:
                self._mapped[first : first + size] = texts[name]
        self.path = path
        self._ask({"path": str(path), "files": self._places})

    def _make_room(self, size: int) -> None:
        """Raises: InTurn, if the memory for that many bytes is not free."""
        free, more = free_memory(), size - self.bytes
        if more > 0 and free is not None and free < more + (ROOM - 1) * size:
            raise InTurn(f"a copy of the state takes {mb(size)}, {ROOM} times that is needed and {mb(free)} are free")
        if more > 0:
            try:
                reserve(self._memory, size)
                self._mapped = mmap.mmap(self._memory, size)  # the one before goes with its last tensor
            except OSError as error:
                raise InTurn(f"{mb(size)} of memory for a copy of the state cannot be had ({error.strerror})") from None
            self.bytes = size

    def _ask(self, request: Dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer says so
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def has_answered(self) -> bool:
        """Whether `take` need not wait for the checkpoint under way; True where there is none."""
        if self.path is None:
            return True
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def take(self) -> float:
        """Wait for the checkpoint under way, which is on disk then; the seconds that writing took.

        Raises:
            OSError: it could not be written.
            InTurn: the process has ended; this one wrote the checkpoint in its place.
        """
        assert self.path is not None
        assert self._process.stdout is not None
        answer, path = self._process.stdout.readline(), self.path
        self.path = None
        if not answer:
            ended = end_in_words(self._process.wait())  # first: what it left half is removed once it is gone
            write_checkpoint(path, self._memory, self._places)
            raise InTurn(f"the process that wrote checkpoints {ended}")
        said = json.loads(answer)
        if "seconds" not in said:
            raise OSError(said["errno"], said["strerror"], said["filename"])
        return float(said["seconds"])

    def close(self) -> None:
        """End the process; a checkpoint under way is written to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        os.close(self._memory)
        self._mapped = None


def mb(size: int) -> str:
    """A number of bytes in words; MB of 2**20."""
    return f"{size / 2**20:,.0f} MB"
