"""Model folders in the layout of transformers: which of their files are read, whoever made them.

All commands read the same forms: weights as safetensors or as PyTorch's own file, whole or in shards, and a tokenizer
as tokenizer.json or vocab.txt (docs/checkpoints.md).
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_model.files import sha256_of
from tasks.records.hub_inputs import download_files
from tasks.stage.errors import InputError
from tasks.vocabulary.hub_tokenizer import FILES as TOKENIZER_FILES

if TYPE_CHECKING:
    from ipu_model.models.config import ModelConfig
    from ipu_model.models.import_model import Imported

CONFIG = "config.json"
WEIGHTS = re.compile(r"(model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?")
WHOLE = ("model.safetensors", "pytorch_model.bin")
"""Safetensors win over PyTorch's own files, and one file over shards."""
PICKLED = ".bin"
UNNAMED = ("LABEL_0", "LABEL_1")
"""The classes of a model whose config.json names none, as transformers leaves them out."""
NO_WEIGHTS = "holds no weights: model.safetensors or pytorch_model.bin is required, whole or shards"


def weight_names(present: Collection[str]) -> list[str]:
    """Return the files of a model that hold its weights, with the index of shards; none where it has none."""
    for whole in WHOLE:
        kind, ending = whole.split(".")
        found = [name for name in present if WEIGHTS.fullmatch(name) and name.split(".")[0].split("-")[0] == kind]
        if any(name.endswith(f".{ending}") for name in found):
            return [whole] if whole in found else found
    return []


def wanted_files(present: Collection[str]) -> list[str]:
    """Return the files of a model to take: architecture, weights and tokenizer."""
    config = [CONFIG] if CONFIG in present else []
    return [*config, *weight_names(present), *(name for name in present if name in TOKENIZER_FILES and name != CONFIG)]


def weight_paths(folder: Path) -> list[Path]:
    """Return the weights of a folder, without the index of shards; none where it has none."""
    names = weight_names(sorted(file.name for file in folder.iterdir() if file.is_file()))
    return [folder / name for name in names if not name.endswith(".json")]


def download_model(
    repository: str, revision: str | None, section: str, extra: Collection[str] = ()
) -> tuple[str, Path]:
    """Download a model of the Hub.

    Args:
        repository: `user/name`.
        revision: branch, tag or commit; None is the main branch.
        section: section of params.yaml that the messages name; empty: the repository was named elsewhere.
        extra: files that are taken besides, where they are there.

    Returns:
        The commit, and the folder of the Hub's cache that holds its files.

    Raises:
        InputError: as hub_inputs.download_files, or it has no config.json.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    commit, present, files = download_files(
        repository,
        revision,
        lambda names: [*wanted_files(names), *(name for name in names if name in extra)],
        section,
    )
    if CONFIG not in files:
        some = ", ".join(present[:8]) or "nothing"
        named = f"{section}.repository={repository}" if section else repository
        raise InputError(f"{named} holds no {CONFIG} (found: {some}): it is no model")
    return commit, files[CONFIG].parent


def read_architecture(source: Path, key: str) -> ModelConfig:
    """Read the architecture that config.json of a model folder states; no weight is read.

    Args:
        source: the folder.
        key: what named it, for messages.

    Raises:
        InputError: not a model folder, or not a BERT that is computed here.
    """
    from ipu_model.errors import DeviceJobError
    from ipu_model.models.architecture import read_config

    require_config(source, key)
    try:
        return read_config(source / CONFIG)[0]
    except DeviceJobError as error:
        raise InputError(f"{key}: {error}") from None


def describe_head(source: Path, architecture: str, labels: Sequence[str], all_known: bool) -> str:
    """Describe what becomes of the classes of a model that is fine-tuned for others; empty where nothing does.

    Args:
        source: the model's folder.
        architecture: the class of transformers that has the head of the task.
        labels: the classes of the examples, in the order of their numbers.
        all_known: whether the examples may have no others.
    """
    from ipu_model.errors import DeviceJobError
    from ipu_model.models.architecture import architecture_of, match_labels, read_config

    try:
        names = read_config(source / CONFIG)[1] or UNNAMED
    except DeviceJobError:
        return ""  # said where the model is read
    if architecture_of(source) != architecture or len(names) == len(labels) == 1:
        return ""
    if len(labels) < len(names) and not all_known:
        return ""
    return match_labels(names, labels)[1]


def cached_folder(repository: str, revision: str | None) -> Path | None:
    """Return the folder of the Hub's cache with config.json of a model; None where it was not downloaded."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, CONFIG, revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def require_config(source: Path, key: str) -> None:
    """Raise InputError for a folder that is not a model's."""
    if not (source / CONFIG).is_file():
        raise InputError(f"{key} holds no {CONFIG}: name the folder that save_pretrained wrote")


@contextlib.contextmanager
def as_safetensors(source: Path, tokenizer: Path) -> Iterator[Path]:
    """Give a folder with the model of `source` whose weights are safetensors: a copy, where they are pickled there.

    The copy is made in this process, whose torch reads such files safely, and removed at the end.

    Args:
        source: a model folder.
        tokenizer: the file that stands for its tokenizer.

    Raises:
        InputError: damaged, or weights that hold more than tensors.
    """
    if not any(path.suffix == PICKLED for path in weight_paths(source)):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="podium-") as folder:
        take_in(source, Path(folder), sha256_of(tokenizer), str(source))
        yield Path(folder)


def take_in(source: Path, target: Path, tokenizer_sha256: str, key: str) -> Imported:
    """Write the model of the folder `source` into the folder `target`, under our names.

    Args:
        key: what named it, for messages.

    Raises:
        InputError: not a BERT that is computed here, incomplete, damaged, or not finite.
    """
    from ipu_model.errors import DeviceJobError
    from ipu_model.models.import_model import import_model  # torch comes with it: only a run that needs it loads it

    try:
        return import_model(source, target, tokenizer_sha256)
    except DeviceJobError as error:
        raise InputError(f"{key}: {error}") from None
