"""Model folders in the layout of transformers.

All commands read the same files: weights as safetensors or as PyTorch's own format, whole or in shards, and a tokenizer
as tokenizer.json or vocab.txt (docs/checkpoints.md).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_model.core.errors import DeviceJobError
from ipu_model.core.files import sha256_of
from ipu_model.models.architecture import CONFIG, match_labels, read_class_name, read_config, read_model_config
from ipu_model.models.config import IGNORED_KEYS, ModelConfig
from ipu_model.models.families import get_family
from tasks.params.sections import HUB_NAME
from tasks.records.hub_inputs import download_files
from tasks.stage.errors import InputError, translate_device_errors
from tasks.stage.process import loading_packages
from tasks.stage.scratch import scratch_folder
from tasks.vocabulary.hub_tokenizer import FILES as TOKENIZER_FILES

if TYPE_CHECKING:
    from ipu_model.models.import_model import ImportReport

WEIGHTS = re.compile(r"(model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?")
UNSHARDED = ("model.safetensors", "pytorch_model.bin")
"""Safetensors are preferred over PyTorch's own files, and one file over shards."""
PICKLED = ".bin"
ADAPTER = "adapter_config.json"
NAMES_WITHOUT_USER = re.compile(
    "(albert|bert|camembert|distilbert|distilroberta|roberta|xlm-roberta)-(base|large|xlarge|xxlarge)(-[a-z0-9-]+)?"
)
"""Old names of the Hub. Any other name without a user is a folder or a run."""
DEFAULT_LABELS = ("LABEL_0", "LABEL_1")
"""Classes of a model whose config.json names none: transformers omits these."""
NO_WEIGHTS = "has no weights: model.safetensors or pytorch_model.bin is required, whole or in shards"


def select_weight_files(present: Collection[str]) -> list[str]:
    """Return the weight files of a model, including the index of shards; empty if it has none."""
    for whole in UNSHARDED:
        kind, ending = whole.split(".")
        weights = [name for name in present if WEIGHTS.fullmatch(name) and name.split(".")[0].split("-")[0] == kind]
        if any(name.endswith(f".{ending}") for name in weights):
            return [whole] if whole in weights else weights
    return []


def select_model_files(present: Collection[str]) -> list[str]:
    """Return the files of a model that are used: architecture, weights and tokenizer."""
    others = [name for name in present if name in TOKENIZER_FILES and name != CONFIG]
    return [*({CONFIG} & set(present)), *select_weight_files(present), *others]


def list_weight_files(folder: Path) -> list[Path]:
    """Return the paths of a folder's weight files, without the index of shards; empty if it has none."""
    names = select_weight_files(sorted(file.name for file in folder.iterdir() if file.is_file()))
    return [folder / name for name in names if not name.endswith(".json")]


def download_model(
    repository: str, revision: str | None, section: str, extra: Collection[str] = ()
) -> tuple[str, Path]:
    """Download a model of the Hub, with `extra` files if they exist; return the commit, and the folder in its cache.

    Raises:
        InputError: see hub_inputs.download_files; or there is no config.json.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    def choose(names: Collection[str]) -> list[str]:
        return [*select_model_files(names), *(name for name in names if name in extra)]

    commit, present, files = download_files(repository, revision, choose, section)
    if CONFIG not in files:
        shown = ", ".join(present[:8]) or "nothing"
        named = f"{section}.repository={repository}" if section else repository
        raise InputError(f"{named} has no {CONFIG} (found: {shown}), so it is not a model: check the name")
    return commit, files[CONFIG].parent


def read_architecture(source: Path, key: str) -> ModelConfig:
    """Read the architecture from config.json of a model folder, without its weights.

    Raises:
        InputError: not a model folder, or not a supported model; the message begins with `key`, which named it.
    """
    require_config(source, key)
    with translate_device_errors(key):
        return read_config(source / CONFIG)[0]


def read_values(source: Path) -> dict[str, Any]:
    """Read the content of config.json of a model folder; errors as `read_architecture`."""
    require_config(source, str(source))
    with translate_device_errors():
        return read_model_config(source / CONFIG)[0]


def packs_rows(family: str) -> bool:
    """Return whether models of a family are trained on rows of several sequences, by Podium's own modules."""
    return get_family(family).own


def rotates_positions(family: str) -> bool:
    """Return whether models of a family have rotary positions instead of a table of positions."""
    return get_family(family).rotary


def keeps_settings(family: str) -> bool:
    """Return whether models of a family are computed from more of config.json than ModelConfig has fields for."""
    return get_family(family).rotary or not get_family(family).own


def read_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ModelConfig in the content of a supported model's config.json."""
    with translate_device_errors():
        return get_family(values.get("model_type") or "bert").read_fields(values)


def describe_encoder(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what transformers needs of the content of a supported model's config.json: encoder and classes."""
    family = get_family(values.get("model_type") or "bert")
    names = values.get("id2label") or {}
    classes = {"id2label": {int(number): str(name) for number, name in names.items()}} if names else {}
    with translate_device_errors():
        settings = family.write_values(ModelConfig(**family.read_fields(values)))
    known = {name: value for name, value in settings.items() if not IGNORED_KEYS.match(name)}
    return {"model_type": family.model_type, **known, **classes}


def count_parameters(folder: Path) -> int:
    """Return the number of weights in the safetensors of a folder, without reading them.

    Raises:
        InputError: there are none, or they are damaged.
    """
    from ipu_model.models import weight_files  # imports torch

    with translate_device_errors():
        return weight_files.count_parameters(folder)


def name_family(values: Mapping[str, Any]) -> str:
    """Return the name of a model's family for users, from the content of its config.json."""
    return get_family(values.get("model_type") or "bert").title


def describe_head(source: Path, suffix: str, labels: Sequence[str], all_known: bool) -> str:
    """Describe how a model's classes change when it is fine-tuned for others; empty if they do not.

    Args:
        suffix: end of the name of the class of transformers with the head of the task.
        labels: classes of the examples, in order of their numbers.
        all_known: the examples may have no other classes.
    """
    try:
        names = read_config(source / CONFIG)[1] or DEFAULT_LABELS
    except DeviceJobError:
        return ""  # reported when the model is read
    known = len(labels) >= len(names) or all_known
    has_head = read_class_name(source).endswith(suffix) and not len(names) == len(labels) == 1
    return match_labels(names, labels)[1] if known and has_head else ""


def find_cached_folder(repository: str, revision: str | None) -> Path | None:
    """Return the folder of the Hub's cache with config.json of a model; None if it was not downloaded."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repository, CONFIG, revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def require_hub_name(name: str, key: str) -> None:
    """Raise InputError if a name that is neither a folder nor a run is none of the Hub; no host is asked."""
    if not HUB_NAME.fullmatch(name) or ("/" not in name and not NAMES_WITHOUT_USER.fullmatch(name)):
        raise InputError(f"{key} not found: no folder or run has this name here. A model of the Hub is named user/name")


def require_config(source: Path, key: str) -> None:
    """Raise InputError if the folder is not that of one model, and say what it is."""
    adapted = (source / ADAPTER).is_file()
    if adapted:
        alone = not list_weight_files(source)
        raise InputError(
            f"{key} is an adapter {'without its model' if alone else 'next to a model'} ({ADAPTER}). Merge it into its "
            "model with merge_and_unload of peft and name the folder that save_pretrained then writes"
            + ("" if alone else f", or name a folder with the model and without {ADAPTER}")
        )
    if not (source / CONFIG).is_file():
        inside = sorted(path.parent.name for path in source.glob(f"*/{CONFIG}"))
        if inside:
            advice = f"; its folders {', '.join(inside[:8])} have one: name one of them"
        elif (source.absolute().parent / CONFIG).is_file():
            advice = f": name the folder above it, {source.absolute().parent.name}, which has one"
        else:
            advice = ": name the folder that save_pretrained wrote"
        raise InputError(f"{key} has no {CONFIG}{advice}")


@contextlib.contextmanager
def convert_to_safetensors(source: Path, tokenizer: Path) -> Iterator[Path]:
    """Yield a folder with the model of `source` as safetensors: a temporary copy if the weights are pickled.

    The copy is made in this process, whose torch reads pickled files safely, and is removed at the end. The file
    `tokenizer` identifies its tokenizer.

    Raises:
        InputError: damaged, or weights that contain more than tensors.
    """
    if not any(path.suffix == PICKLED for path in list_weight_files(source)):
        yield source
        return
    with scratch_folder() as folder:
        import_model_folder(source, folder, sha256_of(tokenizer), str(source))
        yield folder


def import_model_folder(source: Path, target: Path, tokenizer_sha256: str, key: str) -> ImportReport:
    """Write the model of the folder `source` into the folder `target`, with Podium's parameter names.

    Raises:
        InputError: not a supported model, incomplete, damaged, or weights that are not finite; the message begins with
            `key`, which named the model.
    """
    with loading_packages():
        from ipu_model.models.import_model import import_model  # imports torch: loaded only when needed

    with translate_device_errors(key):
        return import_model(source, target, tokenizer_sha256)
