"""A checkout whose gate compares with what its entry published, and releases of it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipu_model.core.files import sha256_of, write_json
from tasks.params.entries import find_entry
from tasks.params.schema import load_params, parameter_values
from tasks.release.fetch import FetchResult, fetch, newest_on_hub
from tasks.release.names import FolderReleases
from tasks.release.publish import publish
from tasks.stage import artifacts
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.hub_publishing import NAME
from tests.tasks.trained_checkout import write_gate, write_model

GATE = {"released": "published", "min_f1": None}
FOLDER = Path("released/squad")


def state(root: Path, changes: Mapping[str, Any] | None = None, **publish_how: Any) -> None:
    """Parameters whose gate asks for what was published; `publish_how` is the section publish."""
    entry = {"gate": GATE, "publish": {"repository": NAME}, **(changes or {})}
    change_parameters(root, {"downstream": {"squad": entry}, "publish": publish_how})


def replace_model(root: Path, seed: int) -> None:
    shutil.rmtree(root / "models/squad")
    write_model(root, seed)


def release(root: Path, seed: int | None = None) -> str:
    """Publish, as if the gate had compared with what is out now: a folder by its weights, a Hub by its commit."""
    if seed is not None:
        replace_model(root, seed)
    params, folder = load_params(root / artifacts.PARAMS), root / artifacts.released_scores("squad")
    record = folder / artifacts.RELEASED_RECORD
    if compared := not (folder / "scores.json").is_file():
        target = root / "published/podium-demo"
        weights = (FolderReleases(target).named_release() or target) / "model.safetensors"
        out = newest_on_hub(find_entry(params, "squad")) if params.publish.target == "hub" else []
        tag, commit = (out[0].tag, out[0].commit) if out else (None, None)
        about = {"tag": tag, "repository": NAME, "commit": commit}
        write_json(record, {"release": about, "weights": sha256_of(weights) if weights.is_file() else None})
    write_gate(root)
    tag = publish_here(root)["tag"]
    if compared:
        record.unlink()
    return str(tag)


def publish_here(root: Path, name: str = "squad", **options: bool) -> dict[str, Any]:
    return publish(parameter_values(load_params(root / artifacts.PARAMS)), name, root, **options)


def fetch_here(root: Path, **how: Any) -> FetchResult:
    params = load_params(root / artifacts.PARAMS)
    return fetch(params, find_entry(params, "squad"), root, **how)
