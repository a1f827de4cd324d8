"""Models for inference: a published folder, a model folder or a Hub repository, checked early."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipu_model.core.files import read_json
from tasks.models.model_folders import (
    NO_WEIGHTS,
    download_model,
    list_weight_files,
    read_fields,
    read_values,
    require_hub_name,
    select_model_files,
)
from tasks.plan.named_files import leads_outside
from tasks.stage import artifacts
from tasks.stage.errors import InputError

CONFIG, WEIGHTS, PROVENANCE, IPU_CONFIG = "config.json", "model.safetensors", "provenance.json", "ipu_config.json"
OF_RELEASES = ("podium.json", PROVENANCE, IPU_CONFIG)
"""Additional files of a release."""


@dataclass(frozen=True)
class InferenceModel:
    """Model folder with weights and a tokenizer."""

    folder: Path
    tokenizer: Path
    """Folder with tokenizer.json or vocab.txt."""
    max_positions: int
    config: Mapping[str, Any] = field(default_factory=dict)
    """Content of config.json."""

    def with_absolute_paths(self) -> InferenceModel:
        """Return a copy with absolute paths."""
        return dataclasses.replace(self, folder=self.folder.resolve(), tokenizer=self.tokenizer.resolve())

    @property
    def weights(self) -> list[Path]:
        """Files of the weights."""
        return list_weight_files(self.folder)

    @property
    def architectures(self) -> list[str]:
        """Transformers classes named in config.json; usually one."""
        named = self.config.get("architectures")
        return [str(name) for name in named] if isinstance(named, list) else []

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names by number; transformers omits them for two unnamed classes."""
        names = self.config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
        return tuple(str(names[number]) for number in sorted(names, key=int))

    @property
    def max_tokens(self) -> int:
        """Maximum sequence length of model and tokenizer."""
        return min(self.max_positions, _model_max_length(self.tokenizer))


def find_model(name: str, tokenizer: Path | None = None, backend: str = "") -> InferenceModel:
    """Return a model folder or download a Hub repository, and check it; an exported file replaces its weights.

    Args:
        tokenizer: folder of the tokenizer; default: the model folder.
        backend: format of an exported file to download also, if it is one.

    Raises:
        InputError: folder or repository not found; config.json, weights or tokenizer missing.
    """
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists():
            raise InputError(f"{folder} is a file. Name the folder that contains config.json and the weights")
        require_hub_name("" if folder.parent != Path() and folder.parent.is_dir() else name, name)
        _, folder = download_model(
            name, None, "", (*OF_RELEASES, *artifacts.MODULE_FILES, artifacts.EXPORT_FILES.get(backend, ""))
        )
    from tasks.vocabulary.encoding import find_tokenizer_file  # imports numpy and pyarrow, and the flow imports this

    holder = folder if tokenizer is None else tokenizer
    _require_own_files(folder, holder)
    model = read_model(folder, holder)
    exported = artifacts.EXPORT_FILES.get(backend)
    if not list_weight_files(folder) and not (exported and (folder / exported).is_file()):
        raise InputError(f"{folder} {NO_WEIGHTS}")
    try:
        find_tokenizer_file(holder)
    except InputError:
        raise InputError(
            f"{holder / 'tokenizer.json'} is missing, and there is no vocab.txt: a published folder has one; for a "
            f"folder of models/ add --tokenizer {artifacts.TOKENIZER}"
        ) from None
    return model


def read_model(folder: Path, tokenizer: Path | None = None) -> InferenceModel:
    """Return a model folder from its config.json; weights and tokenizer may be missing.

    Raises:
        InputError: config.json is missing or is not that of an encoder.
    """
    config = read_values(folder)
    if "max_position_embeddings" not in config:
        raise InputError(
            f"{folder / CONFIG} is not the configuration of an encoder: max_position_embeddings is missing"
        )
    return InferenceModel(folder, tokenizer or folder, read_fields(config)["max_positions"], config)


def find_exported(model: InferenceModel, form: str) -> Path:
    """Return the exported file of a model in this format: in its folder, or of its run.

    Raises:
        InputError: there is none.
    """
    name, folder = artifacts.EXPORT_FILES[form], model.folder.resolve()
    of_run = folder.parent.parent / artifacts.exports_folder(folder.name)
    paths = [path for path in (model.folder / name, of_run / name) if path.is_file()]
    if not paths:
        raise InputError(
            f"{model.folder} has no {name}. Write it with podium export, and name the folder that it writes"
        )
    return paths[0]


def read_files(folder: Path) -> list[Path]:
    """Return the paths of a model folder that are read, including those of a release, whether or not they exist."""
    present = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [folder / name for name in (*select_model_files(present), *OF_RELEASES, *artifacts.EXPORT_FILES.values())]


def _require_own_files(*folders: Path) -> None:
    for folder in folders:
        for path in read_files(folder):
            if path.is_symlink() and leads_outside(path, folder):
                raise InputError(
                    f"{path} is a link to a file outside {folder}. Replace it with the file itself (cp -rL copies a "
                    "folder that way), or name the folder that it points to"
                )


def _model_max_length(tokenizer: Path) -> int:
    path = tokenizer / "tokenizer_config.json"
    try:
        value = read_json(path).get("model_max_length")
    except FileNotFoundError:
        return sys.maxsize
    except (ValueError, AttributeError):
        raise InputError(f"{path} is not a JSON object. Publish or download the model again") from None
    if value is None or value == math.inf:
        return sys.maxsize
    if type(value) not in (int, float) or not value >= 1:
        raise InputError(f"{path}: model_max_length is {value!r:.80}, a positive number of tokens is required")
    return min(int(value), sys.maxsize)  # transformers writes 1e30 for no limit
