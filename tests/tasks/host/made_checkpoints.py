"""Checkpoints to copy."""

import contextlib
import hashlib
import json
import threading
from pathlib import Path

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from tasks.host import checkpoint_sync
from tasks.host.checkpoint_sync import sync_checkpoints
from tasks.stage.errors import StagePaused

__all__ = ["HangingFileSystem", "Path", "checkpoint_sync", "fsspec", "pause"]

KEY = "pretrain-phase1/0123456789ab"
HANGS = threading.Event()


class HangingFileSystem(MemoryFileSystem):
    protocol = "hangs"

    def exists(self, path: str, **kwargs: object) -> bool:
        return not HANGS.wait()

    def put(self, *args: object, **kwargs: object) -> None:
        HANGS.wait()


def saved(path: Path) -> dict[str, str]:
    return {"event": "saved", "path": str(path)}


def pause(run: Path, remote: Path | str, *updates: int, in_a_hurry: bool = False) -> None:
    with contextlib.suppress(StagePaused), sync_checkpoints(run, str(remote), KEY) as copy_saved:
        for step in updates:
            copy_saved(saved(write_checkpoint(run, step)))
        copy_saved(saved(run / "model"))
        raise StagePaused("stopped on request", in_a_hurry)


def write_checkpoint(run: Path, step: int, text: str = "weights") -> Path:
    """A checkpoint as ipu_model.train.checkpoint writes it, with small files."""
    folder = run / f"step-{step:08d}"
    folder.mkdir(parents=True)
    contents = {"model.safetensors": f"{text} {step}", "optimizer.safetensors": "moments", "state.json": "{}"}
    for name, content in contents.items():
        (folder / name).write_text(content)
    hashes = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in contents.items()}
    (folder / "sha256.json").write_text(json.dumps(hashes))
    return folder
