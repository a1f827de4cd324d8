"""Which kind of worker a stage belongs to, and a stage's refusal to run on another.

Preparing and judging data needs no accelerator; training and prediction run on whatever `device.runtime` names.
A worker says in PODIUM_STAGE_KINDS what it offers, so that a pod never quietly computes again what the remote lost.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from ipu_model.files import sha256_of
from tasks.params.schema import load_params, load_sections
from tasks.plan.composing import require_plan
from tasks.plan.dvc_records import default_remote
from tasks.plan.plan_file import PLAN_FILE, Stage, read_plan
from tasks.stage import artifacts
from tasks.stage.errors import InputError, WrongWorker

KINDS = ("cpu", "cuda", "ipu")
AUTO = "auto"
"""The kind of a device stage whose runtime is chosen where it runs: every worker may."""
STAGE_KINDS = "PODIUM_STAGE_KINDS"
STAGES_SENT = "PODIUM_STAGES_SENT"
"""Set by the flow on a worker: the stages it was sent, which alone may run there."""
RESOLVED = "PODIUM_RESOLVED"
"""Set by the flow: the hash of the parameters and of the plan that it has checked and written for its stages."""
DEVICE_LOCK = "PODIUM_DEVICE_LOCK"

_held: list[int] = []
"""Descriptors of locks that this process keeps until it ends."""


def offered_kinds() -> tuple[str, ...]:
    """What this worker offers: the words of PODIUM_STAGE_KINDS, all kinds when it is unset or empty.

    Raises:
        InputError: it names something that is no kind.
    """
    words = tuple(word.strip() for word in os.environ.get(STAGE_KINDS, "").split(",") if word.strip())
    if unknown := [word for word in words if word not in KINDS]:
        raise InputError(f"{STAGE_KINDS} names {', '.join(unknown)}; the kinds are {', '.join(KINDS)}, apart by commas")
    return words or KINDS


def enter_stage() -> None:
    """Called first by every stage that DVC runs: refuse a stage of another kind, and take the device.

    Raises:
        WrongWorker: this worker does not offer the kind of the stage, or was not sent it; says which outs were missing
            from which remote.
    """
    root = Path(os.environ.get("DVC_ROOT", "."))
    if not (root / artifacts.PARAMS).is_file():
        return
    if os.environ.get(RESOLVED) != hash_of_parameters(root):  # started by dvc repro, or changed since
        require_plan(root, load_params(root / artifacts.PARAMS))
    runtime: str = load_sections("device", path=root / artifacts.PARAMS).device.runtime
    stage = read_plan(root).get(os.environ["DVC_STAGE"])
    if stage is None:
        raise InputError(f"{root / PLAN_FILE} has no stage {os.environ['DVC_STAGE']} with {root / artifacts.PLAN}")
    _require_sent(stage, root)
    kind, offered = stage.kind(runtime), offered_kinds()
    if kind != AUTO and kind not in offered:
        raise WrongWorker(
            f"stage {stage.name} is of kind {kind}, and this worker offers only {', '.join(offered)} ({STAGE_KINDS}). "
            f"It was started because {_missing(stage, root)}. Run it where {kind} is offered, on the same code, "
            "parameters and inputs, and push its outs; or widen what this worker offers"
        )
    if stage.holds_device:
        hold_device(kind, offered)


def hash_of_parameters(root: Path) -> str:
    """Return what stands for the bytes of params.yaml and plan.yaml."""
    return " ".join(sha256_of(root / name) for name in (artifacts.PARAMS, artifacts.PLAN) if (root / name).is_file())


def _require_sent(stage: Stage, root: Path) -> None:
    """On a worker DVC brings what the stages need up to date, too: that is to be restored there, never made."""
    sent = os.environ.get(STAGES_SENT)
    if sent is not None and stage.name not in sent.split():
        raise WrongWorker(
            f"stage {stage.name} was not sent to this worker, only {sent}. It was started because "
            f"{_missing(stage, root)}. Run it where it belongs, on the same code, parameters and inputs: its worker "
            "pushes its outs"
        )


def _missing(stage: Stage, root: Path) -> str:
    outs = ", ".join(out for out in stage.outs if Path(out).parts[0] != artifacts.MEASUREMENTS.name)
    remote = default_remote(root)
    if remote is None:
        return f"its outs ({outs}) are not here, and no remote is set to restore them from (dvc remote add -d NAME URL)"
    return f"its outs ({outs}) for these very inputs are neither here nor on the remote {remote[0]} ({remote[1]})"


def hold_device(kind: str, offered: tuple[str, ...]) -> None:
    """Wait until no other stage on this host uses the device, and keep it until this process ends.

    The lock is the file PODIUM_DEVICE_LOCK. Without that variable IPUs have one lock per user, and other devices none.
    """
    path = os.environ.get(DEVICE_LOCK)
    if not path:
        if kind != "ipu" and not (kind == AUTO and offered == ("ipu",)):
            return
        path = os.path.join(tempfile.gettempdir(), f"podium-ipu-{os.getuid()}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
        print(f"waiting for the device: {holder or 'another stage'} uses it (lock {path})", flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()}\n".encode("ascii"), 0)
    _held.append(descriptor)
