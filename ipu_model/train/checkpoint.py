"""Checkpoints of a run: written atomically, verified when read, and tied to their run by a fingerprint.

    run_folder/step-00001000/   model.safetensors, optimizer.safetensors,
                                best.safetensors (if the best evaluated weights may become the result),
                                state.json (step, fingerprint, open history window, evaluations, generators),
                                sha256.json (file name -> SHA-256)

The position in the data is not stored: it follows from the step (rows/row_folder.UpdateRows).
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from ipu_model.core.errors import CheckpointError
from ipu_model.core.files import PARTIAL, format_json, new_folder, read_json, sha256_of, write_json, write_text
from ipu_model.core.progress import Emit
from ipu_model.models.tensors import load_tensors, save_tensors
from ipu_model.train.checkpoint_process import HASHES

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
BEST = "best.safetensors"
MAX_CHECKPOINTS = 2
"""Checkpoints that are not removed: the newest, and the one before it in case the newest is damaged."""
FOLDER_NAME = re.compile(r"step-(\d+)")

Fingerprint = Dict[str, Any]
"""Dotted name -> JSON value of everything that determines the weights of a run."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after `step` updates."""

    step: int
    model: Dict[str, Tensor]
    optimizer: Dict[str, Tensor]
    device_rng: Dict[str, Tensor]
    history: Dict[str, Any]
    evaluations: Dict[str, Any] = field(default_factory=dict)
    """Result of Evaluator.state."""
    best: Dict[str, Tensor] = field(default_factory=dict)
    """Weights of the best evaluation; empty if the last weights are the result."""
    host_rng: Dict[str, Any] = field(default_factory=lambda: _host_rng())
    """Generator states of Python and NumPy at construction."""

    @property
    def tensors(self) -> Dict[str, Dict[str, Tensor]]:
        """Tensors by file and name."""
        files = {MODEL: self.model, OPTIMIZER: self.optimizer, BEST: self.best}
        return {name: tensors for name, tensors in files.items() if tensors or name != BEST}


class Checkpoints:
    """Checkpoints of one run folder, which this process has locked (process.lock_run_folder).

    Args:
        writer: True for the one process of a training that saves and removes checkpoints for all.
        reasons: Why the run has the settings that were measured, by name; a resumed run reports them.
    """

    def __init__(
        self,
        run_folder: Path,
        fingerprint: Fingerprint,
        emit: Emit,
        writer: bool = True,
        reasons: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._folder, self._fingerprint, self._emit, self.is_writer = Path(run_folder), fingerprint, emit, writer
        self._reasons = dict(reasons or {})

    def path_of(self, step: int) -> Path:
        """Return the folder of the checkpoint after that update."""
        return self._folder / f"step-{step:08d}"

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove older ones.

        Raises:
            OSError: the disk is full or not writable; earlier checkpoints stay.
        """
        path = self.path_of(checkpoint.step)
        with new_folder(path) as partial:
            for name, tensors in checkpoint.tensors.items():
                save_tensors(partial / name, tensors)
            write_text(partial / STATE, self.state_text(checkpoint))
            write_json(partial / HASHES, {path.name: sha256_of(path) for path in sorted(partial.iterdir())})
        self.remove()
        return path

    def state_text(self, checkpoint: Checkpoint) -> str:
        """Return the text of the checkpoint's state.json."""
        state = {
            "step": checkpoint.step,
            "fingerprint": self._fingerprint,
            **self._reasons,
            "history": checkpoint.history,
            "evaluations": checkpoint.evaluations,
            "rng": checkpoint.host_rng,
            "device_rng": {
                name: x.cpu().numpy().astype(np.uint8).tobytes().hex() for name, x in checkpoint.device_rng.items()
            },
        }
        return format_json(state)

    def remove(self, most: int = MAX_CHECKPOINTS) -> None:
        """Remove all checkpoints but the newest `most`; 0 once the result is on disk."""
        for old in self._paths()[most:]:
            shutil.rmtree(str(old))

    def load_latest(self) -> Optional[Checkpoint]:
        """Load the newest complete checkpoint and restore the generators of Python and NumPy.

        Raises:
            CheckpointError: the checkpoint belongs to another run; the message lists the differences.
        """
        for path in self._folder.glob(f"step-*{PARTIAL}") if self.is_writer else ():
            self._emit("message", text=f"{path} is incomplete; removing it")
            shutil.rmtree(str(path))
        for path in self._paths():
            try:
                state = _read_verified_state(path)
            except CheckpointError as error:
                self._emit("message", text=f"{error}; skipping it and using the previous checkpoint")
                continue
            try:
                return self._restore(path, state)
            except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
                if isinstance(error, CheckpointError):
                    raise
                raise CheckpointError(
                    f"{path / STATE} is complete but has another format than this version reads "
                    f"({type(error).__name__}: {error}): remove {path} to continue from the previous checkpoint"
                ) from None
        return None

    def read_newest_state(self) -> Optional[Dict[str, Any]]:
        """Return the state.json of the newest checkpoint where that file is undamaged; None if there is none."""
        for path in self._paths():
            with contextlib.suppress(CheckpointError):  # `load_latest` reports the problem
                return _read_verified_state(path, [STATE])
        return None

    def _restore(self, path: Path, state: Dict[str, Any]) -> Checkpoint:
        old, new = state["fingerprint"], self._fingerprint
        differences = [
            f"{name}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
            for name in sorted({*old, *new})
            if old.get(name, "absent") != new.get(name, "absent")
        ]
        if differences:
            raise CheckpointError(
                f"{path} belongs to another run: " + "; ".join(differences) + ". To continue that run, restore these "
                f"values; to start from scratch, remove {self._folder}"
            )
        version, values, gauss = state["rng"]["python"]
        random.setstate((version, tuple(values), gauss))
        np.random.set_state(tuple(state["rng"]["numpy"]))
        hexadecimal = state["device_rng"].items()
        rng = {name: torch.frombuffer(bytearray.fromhex(x), dtype=torch.uint8) for name, x in hexadecimal}
        model, optimizer = load_tensors(path / MODEL), load_tensors(path / OPTIMIZER)
        best = load_tensors(path / BEST) if (path / BEST).exists() else {}
        history, evaluations = state["history"], state["evaluations"]
        return Checkpoint(state["step"], model, optimizer, rng, history, evaluations, best, state["rng"])

    def _paths(self) -> List[Path]:
        """Return the checkpoint folders, newest first by number: as text, step-999 would come after step-1000."""
        matches = ((FOLDER_NAME.fullmatch(path.name), path) for path in self._folder.iterdir())
        paths = {int(match[1]): path for match, path in matches if match}
        return [paths[step] for step in sorted(paths, reverse=True)]


def _read_verified_state(path: Path, names: Sequence[str] = ()) -> Dict[str, Any]:
    """Return the state.json of a checkpoint after checking the hashes of these files, by default of all."""
    try:
        hashes = read_json(path / HASHES)
        for name in names or sorted({MODEL, OPTIMIZER, STATE, *hashes}):
            actual = sha256_of(path / name)
            if actual != hashes[name]:
                raise CheckpointError(f"{path / name} is damaged: SHA-256 is {actual}, expected {hashes[name]}")
        return read_json(path / STATE)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is incomplete ({type(error).__name__}: {error})") from None


def _host_rng() -> Dict[str, Any]:
    # This package does not draw from these two generators, but a library might.
    numpy_state: Any = np.random.get_state()
    name, keys, *rest = numpy_state
    return {"python": random.getstate(), "numpy": [name, keys.tolist(), *rest]}
