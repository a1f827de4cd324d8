"""Kinds of workers for stages: a stage refuses to run on a worker of another kind.

Data preparation and validation need no accelerator; training and prediction run on the device of `device.runtime`. A
worker declares the kinds it offers in PODIUM_STAGE_KINDS, so that a pod never silently recomputes outs that are missing
on the remote.
"""

import fcntl
import os
import tempfile
from pathlib import Path

from ipu_model.core.files import sha256_of
from tasks.params.schema import load_params, load_sections
from tasks.plan.dvc_records import default_remote
from tasks.plan.plan_file import PLAN_FILE, Stage, read_plan
from tasks.plan.writing import require_plan
from tasks.stage import artifacts
from tasks.stage.errors import InputError, WrongWorker

KINDS = ("cpu", "cuda", "ipu")
AUTO = "auto"
"""Kind of a device stage whose runtime is chosen when it runs: any worker may run it."""
STAGE_KINDS = "PODIUM_STAGE_KINDS"
STAGES_SENT = "PODIUM_STAGES_SENT"
"""Variable that the flow sets on a worker: the stages sent to it; no other stage may run there."""
RESOLVED = "PODIUM_RESOLVED"
"""Variable that the flow sets: hash of the parameters and the plan that it validated and wrote for its stages."""
DEVICE_LOCK = "PODIUM_DEVICE_LOCK"

_held: list[int] = []
"""Descriptors of locks that this process holds until it ends."""


def offered_kinds() -> tuple[str, ...]:
    """Return the kinds in PODIUM_STAGE_KINDS; all kinds if it is unset or empty.

    Raises:
        InputError: it contains an unknown kind.
    """
    words = tuple(word.strip() for word in os.environ.get(STAGE_KINDS, "").split(",") if word.strip())
    if unknown := [word for word in words if word not in KINDS]:
        raise InputError(f"{STAGE_KINDS} contains {', '.join(unknown)}; valid: {', '.join(KINDS)}, separated by commas")
    return words or KINDS


def enter_stage() -> None:
    """Refuse a stage of another kind, and lock the device; every stage that DVC runs calls this first.

    Raises:
        WrongWorker: this worker does not offer the kind of the stage, or was not sent it; the message names the
            missing outs and the remote.
    """
    root = Path(os.environ.get("DVC_ROOT", "."))
    if not (root / artifacts.PARAMS).is_file():
        return
    if os.environ.get(RESOLVED) != hash_of_parameters(root):  # started by dvc repro, or changed since
        require_plan(root, load_params(root / artifacts.PARAMS))
    runtime: str = load_sections("device", path=root / artifacts.PARAMS).device.runtime
    stage = read_plan(root).get(os.environ["DVC_STAGE"])
    if stage is None:
        raise InputError(f"{root / PLAN_FILE} has no stage {os.environ['DVC_STAGE']}")
    sent_stages = os.environ.get(STAGES_SENT)
    if sent_stages is not None and stage.name not in sent_stages.split():
        # DVC would run missing upstream stages, which must be restored instead.
        raise WrongWorker(
            f"stage {stage.name} was not sent to this worker, only {sent_stages}. It started because "
            f"{_missing(stage, root)}. Run it on its own worker with the same code, parameters and inputs; that worker "
            "pushes its outs"
        )
    kind, offered = stage.kind(runtime), offered_kinds()
    if kind != AUTO and kind not in offered:
        raise WrongWorker(
            f"stage {stage.name} needs a worker of kind {kind}; this worker offers {', '.join(offered)} "
            f"({STAGE_KINDS}). It started because {_missing(stage, root)}. Run it on a {kind} worker with the same "
            f"code, parameters and inputs, and push its outs; or add {kind} to {STAGE_KINDS}"
        )
    if stage.holds_device:
        hold_device(kind, offered)


def hash_of_parameters(root: Path) -> str:
    """Return a hash of params.yaml and dvc.yaml."""
    return " ".join(sha256_of(root / name) for name in (artifacts.PARAMS, PLAN_FILE) if (root / name).is_file())


def _missing(stage: Stage, root: Path) -> str:
    outs = ", ".join(out for out in stage.outs if Path(out).parts[0] != artifacts.MEASUREMENTS.name)
    remote = default_remote(root)
    if remote is None:
        return (
            f"its outs ({outs}) are missing, and there is no remote to restore them from (dvc remote add -d NAME URL)"
        )
    return f"its outs ({outs}) for these inputs are neither here nor on the remote {remote[0]} ({remote[1]})"


def hold_device(kind: str, offered: tuple[str, ...]) -> None:
    """Wait until no other stage on this host uses the device, and lock it until this process ends.

    The lock is the file PODIUM_DEVICE_LOCK. Without that variable, IPUs have one lock per user, and other devices none.
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
