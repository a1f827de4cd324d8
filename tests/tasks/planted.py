"""Words that exist nowhere else, planted wherever a user's own text can stand, and the search for them in a release."""

from __future__ import annotations

import base64
import json
import os
import platform
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ipu_model.core.files import write_text
from ipu_model.models.config import ModelConfig
from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.modeling import build_model, initialise
from tests.tasks.downstream.entries import lay_over, values_with, write_parameters
from tests.tasks.tiny_model import SPECIAL

MARK = "zxqvwplanted"
PLAIN = ("the", "river", "rises", "in", "hills", "and", "ends", "where", "does", "lake", "what", "?", ".", ",")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
MODEL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_positions": 128}


def planted(what: str) -> str:
    """A word that says where it was planted."""
    return f"{MARK}{what}"


def found(folder: Path) -> list[str]:
    """`file: what`, for every planted word below `folder`: in names and bytes, also as hexadecimal and base64."""
    names = {path: path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return sorted({f"{name}: {what}" for path, name in names.items() for what in _words(path)})


def _words(path: Path) -> Iterator[str]:
    content = path.name.lower().encode() + b"\n" + path.read_bytes().lower()
    yield from (match.decode() for match in re.findall(MARK.encode() + b"([a-z]*)", content))
    if MARK.encode().hex().encode() in content:
        yield "as hexadecimal"
    for shift in range(3):  # base64 writes three bytes as four letters, wherever the word begins
        text = base64.b64encode(b"\0" * shift + MARK.encode())
        if text[4 if shift else 0 : len(text) - 4].lower() in content:
            yield "as base64"


def plant_host(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """User, host, home and secrets of this process; what it starts gets the environment."""
    home = folder / planted("home")
    home.mkdir()
    names = {"HOME": str(home), "USER": planted("user"), "LOGNAME": planted("user"), "HOSTNAME": planted("host")}
    names |= {"PODIUM_EXECUTABLE_CACHE": str(home / "cache"), "HF_TOKEN": planted("token")}
    names |= {"XDG_CACHE_HOME": str(home / "xdg"), "WANDB_API_KEY": planted("key")}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    kernel = os.uname()
    renamed = os.uname_result((kernel.sysname, planted("host"), *kernel[2:]))
    monkeypatch.setattr(os, "uname", lambda: renamed)
    monkeypatch.setattr(platform, "node", lambda: planted("host"))
    for name in ("gethostname", "getfqdn"):
        monkeypatch.setattr(socket, name, lambda *_: planted("host"))


def make_checkout(folder: Path, downstream: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Path:
    """params.yaml, dvc.yaml and what stages need next to them, in a folder whose own name is planted.

    Args:
        folder: it is made in it.
        downstream: entries in place of the project's one, see `values_with`.
        sections: what other sections state.
    """
    root = folder / planted("checkout")
    (root / "inputs/ipu").mkdir(parents=True)
    given = folder / planted("folder")
    common: dict[str, dict[str, Any]] = {
        "model": MODEL,
        "checkpoint": {"remote": str(folder / planted("remote"))},
        "tracking": {
            "project": planted("project"),
            "name": planted("run"),
            "group": planted("group"),
            "folder": planted("curves"),
        },
    }
    values = values_with(downstream, **common)
    lay_over(values, sections)
    for name, entry in values["downstream"].items():
        entry["gate"]["released"] = str(given / planted("released"))
        entry["publish"]["folder"] = f"{planted('published')}/{planted('name')}-{name}"
        if "min_f1" in entry["gate"]:
            entry["gate"] |= {"min_f1": 0.0, "above_baseline": False}
    write_parameters(root, values)
    _plant_remotes(root)
    return root


def _plant_remotes(root: Path) -> None:
    """Remotes of git and DVC with credentials in their URLs."""
    url = f"https://{planted('login')}:{planted('password')}@{planted('server')}.example.org/store"
    for name, text in (
        (".git/config", f'[remote "origin"]\n\turl = {url}\n'),
        (".dvc/config", f"['remote \"{planted('dvc')}\"']\n    url = {url}\n"),
    ):
        write_text(root / name, text)


def write_vocabulary(path: Path) -> list[str]:
    """A given vocab.txt that knows letters and a few words, none of them planted."""
    entries = [*SPECIAL, *PLAIN, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(entries) + "\n", encoding="utf-8")
    return entries


def write_base_model(folder: Path, entries: list[str]) -> None:
    """A model to start from whose configuration, metadata and weights have names of someone's."""
    folder.mkdir(parents=True)
    config = ModelConfig(len(entries), **MODEL)  # type: ignore[arg-type]
    model = build_model("pretraining", config)
    initialise(model, config, seed=1)
    write_model(folder, "pretraining", config, model.state_dict(), ModelOrigin("", "pretrain", "pretraining", 0, 1))
    (folder / "podium.json").unlink()
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "_name_or_path": f"/home/{planted('author')}"}))
    weights = load_file(folder / "model.safetensors")
    weights[f"classifier_{planted('head')}.weight"] = np.zeros((2, 2), dtype=np.float32)
    save_file(weights, folder / "model.safetensors", {"format": "pt", "source": planted("metadata")})


def run_stage(module: Any, *words: str) -> None:
    """The command line of a stage, in this process."""
    before, sys.argv = sys.argv, [module.__name__, *words]
    try:
        module.main()
    finally:
        sys.argv = before
