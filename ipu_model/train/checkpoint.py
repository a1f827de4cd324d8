"""Checkpoints of a run: written whole or not at all, verified when read, bound to what they were made for.

    run_folder/step-00001000/   model.safetensors, optimizer.safetensors,
                                best.safetensors (where the best evaluated weights may be the result),
                                state.json (step, fingerprint, open history window, evaluations, generators),
                                sha256.json (file name -> SHA-256)

The position in the data needs no entry: it follows from the step (data.UpdateRows).
"""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import torch
from torch import Tensor

from ipu_model.errors import CheckpointError
from ipu_model.files import PARTIAL, json_text, new_folder, read_json, sha256_of, write_json, write_text
from ipu_model.models.tensors import load_tensors, save_tensors
from ipu_model.progress import Emit
from ipu_model.train.checkpoint_process import HASHES

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
BEST = "best.safetensors"
KEPT = 2
"""Checkpoints that stay: the newest, and one before it in case the newest is damaged."""
NAME = re.compile(r"step-(\d+)")

Fingerprint = Dict[str, Any]
"""Dotted name -> value of everything that decides the weights of a run; JSON values."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `step` updates."""

    step: int
    model: Dict[str, Tensor]
    optimizer: Dict[str, Tensor]
    device_rng: Dict[str, Tensor]
    history: Dict[str, Any]
    evaluations: Dict[str, Any] = field(default_factory=dict)
    """What Evaluations.state gave."""
    best: Dict[str, Tensor] = field(default_factory=dict)
    """Weights of the best evaluation; none where only the last weights count."""
    host_rng: Dict[str, Any] = field(default_factory=lambda: _host_rng())
    """Generators of Python and NumPy, as they are when this is made."""

    @property
    def tensors(self) -> Dict[str, Dict[str, Tensor]]:
        """By file and name."""
        files = {MODEL: self.model, OPTIMIZER: self.optimizer, BEST: self.best}
        return {name: tensors for name, tensors in files.items() if tensors or name != BEST}


class Checkpoints:
    """The checkpoints of one run folder.

    Args:
        run_folder: Held by this process (process.only_one).
        fingerprint: Of the run that writes and reads here.
        emit: Told of checkpoints that are left out, and why.
        writer: False for the processes that train along with another one, which alone saves and removes for all.
        precision_reason: Why the run has its precision, for who continues it.
    """

    def __init__(
        self, run_folder: Path, fingerprint: Fingerprint, emit: Emit, writer: bool = True, precision_reason: str = ""
    ) -> None:
        self._folder, self._fingerprint, self._emit, self.is_writer = Path(run_folder), fingerprint, emit, writer
        self._precision_reason = precision_reason

    def path_of(self, step: int) -> Path:
        """Where the checkpoint after that update lies."""
        return self._folder / f"step-{step:08d}"

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write one, then remove all but the newest KEPT.

        Raises:
            OSError: disk full or not writable; the checkpoints before it stay.
        """
        path = self.path_of(checkpoint.step)
        with new_folder(path) as partial:
            for name, tensors in checkpoint.tensors.items():
                save_tensors(partial / name, tensors)
            write_text(partial / STATE, self.state_text(checkpoint))
            write_json(partial / HASHES, {path.name: sha256_of(path) for path in sorted(partial.iterdir())})
        self.remove_old()
        return path

    def state_text(self, checkpoint: Checkpoint) -> str:
        """What its state.json holds."""
        state = {
            "step": checkpoint.step,
            "fingerprint": self._fingerprint,
            "precision_reason": self._precision_reason,
            "history": checkpoint.history,
            "evaluations": checkpoint.evaluations,
            "rng": checkpoint.host_rng,
            "device_rng": {
                name: x.cpu().numpy().astype(np.uint8).tobytes().hex() for name, x in checkpoint.device_rng.items()
            },
        }
        return json_text(state)

    def remove_old(self) -> None:
        """Remove all but the newest KEPT."""
        for old in self._paths()[KEPT:]:
            shutil.rmtree(str(old))

    def latest(self) -> Optional[Checkpoint]:
        """The newest one that is whole; restores the generators of Python and NumPy.

        Raises:
            CheckpointError: it was made for another run; the message lists what differs.
        """
        if self.is_writer:
            self._clear_partial()
        for path in self._paths():
            try:
                state = _verified_state(path)
            except CheckpointError as error:
                self._emit("message", text=f"{error}; leaving it out and using the one before")
                continue
            try:
                return self._restored(path, state)
            except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
                if isinstance(error, CheckpointError):
                    raise
                raise CheckpointError(
                    f"{path / STATE} is whole and laid out otherwise than this version writes it "
                    f"({type(error).__name__}: {error}): remove {path} to go on from the one before"
                ) from None
        return None

    def newest_state(self) -> Optional[Dict[str, Any]]:
        """What the newest checkpoint with a whole state says of its run; None where there is none."""
        for path in self._paths():
            try:
                state, hashes = read_json(path / STATE), read_json(path / HASHES)
                if hashes[STATE] == sha256_of(path / STATE) and isinstance(state["fingerprint"], dict):
                    return dict(state)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # `latest` says what is wrong with it
        return None

    def _restored(self, path: Path, state: Dict[str, Any]) -> Checkpoint:
        differences = fingerprint_differences(state["fingerprint"], self._fingerprint)
        if differences:
            raise CheckpointError(
                f"{path} was made for another run: " + "; ".join(differences) + f". To continue that run, put these "
                f"back; to start anew, remove {self._folder}"
            )
        _restore_host_rng(state["rng"])
        hexadecimal = state["device_rng"].items()
        rng = {name: torch.frombuffer(bytearray.fromhex(x), dtype=torch.uint8) for name, x in hexadecimal}
        model, optimizer = load_tensors(path / MODEL), load_tensors(path / OPTIMIZER)
        best = load_tensors(path / BEST) if (path / BEST).exists() else {}
        told = (state["history"], state["evaluations"])
        return Checkpoint(state["step"], model, optimizer, rng, *told, best, state["rng"])

    def remove_all(self) -> None:
        """Once the result is on disk."""
        for path in self._paths():
            shutil.rmtree(str(path))

    def _paths(self) -> List[Path]:
        """Newest first, by number: as text, step-999 would come after step-1000."""
        found = {}
        for path in self._folder.iterdir():
            match = NAME.fullmatch(path.name)
            if match:
                found[int(match.group(1))] = path
        return [found[step] for step in sorted(found, reverse=True)]

    def _clear_partial(self) -> None:
        for path in self._folder.glob(f"step-*{PARTIAL}"):
            self._emit("message", text=f"{path} was not written to the end; removing it")
            shutil.rmtree(str(path))


def fingerprint_differences(old: Fingerprint, new: Fingerprint) -> List[str]:
    """['geometry.global_batch_size: 64 -> 32'], one entry per field that differs."""
    return [
        f"{name}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for name in sorted({*old, *new})
        if old.get(name, "absent") != new.get(name, "absent")
    ]


def _verified_state(path: Path) -> Dict[str, Any]:
    try:
        hashes = read_json(path / HASHES)
        for name in sorted({MODEL, OPTIMIZER, STATE, *hashes}):
            found = sha256_of(path / name)
            if found != hashes[name]:
                raise CheckpointError(f"{path / name} is damaged: SHA-256 {found}, written was {hashes[name]}")
        return read_json(path / STATE)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is incomplete ({type(error).__name__}: {error})") from None


def _host_rng() -> Dict[str, Any]:
    # Nothing here draws from these two; a library underneath might.
    version, values, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    generator = {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}
    return {"python": [version, list(values), gauss], "numpy": {**numpy_state, "state": generator}}


def _restore_host_rng(saved: Dict[str, Any]) -> None:
    version, values, gauss = saved["python"]
    random.setstate((version, tuple(values), gauss))
    generator = {**saved["numpy"]["state"], "key": np.array(saved["numpy"]["state"]["key"], dtype=np.uint32)}
    np.random.set_state({**saved["numpy"], "state": generator})
