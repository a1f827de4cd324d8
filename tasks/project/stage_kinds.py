"""Which kind of worker a stage belongs to, and a stage's refusal to run on another.

Preparing and judging data needs no accelerator; training and prediction run on whatever `device.runtime` names.
A worker says in PODIUM_STAGE_KINDS what it offers, so that a pod never quietly computes again what the remote lost.
"""

from __future__ import annotations

import configparser
import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tasks.project import artifacts
from tasks.project.errors import InputError, WrongWorker
from tasks.project.params import load_params

KINDS = ("cpu", "cuda", "ipu")
AUTO = "auto"
"""The kind of a device stage whose runtime is chosen where it runs: every worker may."""
STAGE_KINDS = "PODIUM_STAGE_KINDS"
STAGES_SENT = "PODIUM_STAGES_SENT"
"""Set by the flow on a worker: the stages it was sent, which alone may run there."""
DEVICE_LOCK = "PODIUM_DEVICE_LOCK"
DEVICE_STAGES = ("pretrain", "finetune", "predict", "compile", "glue_finetune", "glue_predict", "compile_glue")
PARITY = "parity"
"""The stage that computes in the place its item names, whatever device.runtime says."""
PLAN_FILE = Path("dvc.yaml")
OUTS = ("outs", "metrics", "plots")
"""Keys of a stage in dvc.yaml under which the paths stand that it writes."""

_held: list[int] = []
"""Descriptors of locks that this process keeps until it ends."""


def is_device_stage(stage: str) -> bool:
    """Whether a stage of dvc.yaml, such as `pretrain@phase1`, starts a device job; `parity@cpu...` needs no device."""
    name, _, key = stage.partition("@")
    return name in DEVICE_STAGES or (name == PARITY and key.partition(":")[0] != "cpu")


def kind_of(stage: str, runtime: str) -> str:
    """`cpu` for stages without a device job, else the runtime of the parameters (parity: of its item), maybe `auto`."""
    name, _, key = stage.partition("@")
    if name == PARITY:
        return key.partition(":")[0]
    return runtime if is_device_stage(stage) else "cpu"


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
    stage, root = os.environ["DVC_STAGE"], Path(os.environ.get("DVC_ROOT", "."))
    if not (root / artifacts.PARAMS).is_file():
        return
    _require_sent(stage, root)
    kind, offered = kind_of(stage, load_params(root / artifacts.PARAMS).device.runtime), offered_kinds()
    if kind != AUTO and kind not in offered:
        raise WrongWorker(
            f"stage {stage} is of kind {kind}, and this worker offers only {', '.join(offered)} ({STAGE_KINDS}). "
            f"It was started because {_missing(stage, root)}. Run it where {kind} is offered, on the same code, "
            "parameters and inputs, and push its outs; or widen what this worker offers"
        )
    if is_device_stage(stage) and not stage.startswith("compile"):
        hold_device(kind, offered)


def _require_sent(stage: str, root: Path) -> None:
    """On a worker DVC brings what the stages need up to date, too: that is to be restored there, never made."""
    sent = os.environ.get(STAGES_SENT)
    if sent is not None and stage not in sent.split():
        raise WrongWorker(
            f"stage {stage} was not sent to this worker, only {sent}. It was started because {_missing(stage, root)}. "
            "Run it where it belongs, on the same code, parameters and inputs: its worker pushes its outs"
        )


def _missing(stage: str, root: Path) -> str:
    outs = ", ".join(outs_of(stage, root))
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


def outs_of(stage: str, root: Path) -> list[str]:
    """Paths that a stage of dvc.yaml writes, its foreach item filled in."""
    return paths_of(stage, root, OUTS)


def paths_of(stage: str, root: Path, parts: Sequence[str]) -> list[str]:
    """Paths under `parts` (deps, outs, metrics, plots) of a stage of dvc.yaml, its foreach item filled in."""
    return paths_in(stages_of(root / PLAN_FILE), stage, parts)


def paths_in(stages: dict[str, Any], stage: str, parts: Sequence[str]) -> list[str]:
    """The same, of the `stages` of a dvc.yaml that was read already."""
    name, _, key = stage.partition("@")
    body = stages.get(name, {})
    items = body.get("foreach")
    fields = (items[key] or {}) if isinstance(items, dict) else {}
    values = {"${key}": key, "${item}": key, **{f"${{item.{field}}}": str(value) for field, value in fields.items()}}
    definition = body.get("do", body)
    entries = [entry for part in parts for entry in definition.get(part, [])]
    return [_filled(next(iter(entry)) if isinstance(entry, dict) else entry, values) for entry in entries]


def _filled(path: str, values: dict[str, str]) -> str:
    for variable, value in values.items():
        path = path.replace(variable, value)
    return path


def stages_of(path: Path) -> dict[str, Any]:
    """The stages of dvc.yaml or dvc.lock; {} where DVC could not read them either: it says why."""
    try:
        stages = read_dvc_file(path).get("stages")
    except (yaml.YAMLError, AttributeError):
        return {}
    return stages if isinstance(stages, dict) else {}


def read_dvc_file(path: Path) -> dict[str, Any]:
    """dvc.yaml or dvc.lock; {} where there is none. libyaml, as dvc.lock is long.

    Raises:
        yaml.YAMLError: it is broken.
    """
    if not path.is_file():
        return {}
    values: dict[str, Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_bytes()).get_single_data()
    return values or {}


def cache_of(root: Path) -> Path:
    """The folder of DVC's cache that the checkout `root` works with."""
    return root / ".dvc" / _settings(root).get("cache", "dir", fallback="cache")


def _settings(root: Path) -> configparser.ConfigParser:
    config = configparser.ConfigParser(interpolation=None)
    config.read([root / ".dvc" / "config", root / ".dvc" / "config.local"], encoding="utf-8")
    return config


def default_remote(root: Path) -> tuple[str, str] | None:
    """Name and URL (without a password) of the checkout's default DVC remote, None where there is none."""
    config = _settings(root)
    name = config.get("core", "remote", fallback=None)
    if name is None:
        return None
    url = config.get(f"'remote \"{name}\"'", "url", fallback="its URL is set elsewhere")
    password = urlsplit(url).password
    return name, url.replace(f":{password}@", ":***@") if password else url
