"""Stage base_model: a BERT to start from, imported from a folder or the Hub, instead of untrained weights.

    python -m tasks.pretraining.base_model

The source is a model folder in Hugging Face layout: config.json with safetensors, whole or in shards, or PyTorch's own
format, from which only tensors are read. The output is a model folder of Podium with `base_model.json`, which records
what was read, left out and missing.
"""

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipu_model.core.files import new_folder, sha256_of, write_json
from ipu_model.models.architecture import adopt_weights, architecture_differences
from ipu_model.models.families import configure_model
from tasks.models.model_card import CARD, read_origin
from tasks.models.model_folders import (
    NO_WEIGHTS,
    download_model,
    import_model_folder,
    list_weight_files,
    read_architecture,
    require_config,
)
from tasks.params.schema import ModelParams, load_sections
from tasks.params.sections import BaseModelParams
from tasks.plan.main import run_main
from tasks.plan.named_files import require_readable
from tasks.stage import artifacts
from tasks.stage.errors import InputError, translate_device_errors
from tasks.stage.process import parse_no_arguments
from tasks.vocabulary.encoding import find_tokenizer_file
from tasks.vocabulary.hub_tokenizer import TOKENIZER, VOCABULARY, load_local_vocabulary

RECORD = "base_model.json"


def write_base_model(
    params: BaseModelParams,
    model: ModelParams,
    tokenizer: Path = artifacts.TOKENIZER,
    folder: Path = artifacts.BASE_MODEL,
) -> dict[str, Any]:
    """Import the base model into `folder`, atomically, and return the content of `base_model.json`.

    Raises:
        InputError: no such model, not a supported one, weights that are incomplete or unsafe to read, or a mismatch
            with the architecture in the parameters or with the vocabulary of the tokenizer.
    """
    if params.source == "none":
        raise InputError("base_model.source is none, so there is no model to import: set it to folder or hub")
    if params.source == "folder":
        source, key = Path(params.path), f"base_model.path={params.path}"
        require_readable(source, "base_model.path")
        require_config(source, key)
        record: dict[str, Any] = {"source": "folder", "path": params.path, "origin": read_origin(source)}
    elif params.repository:
        key = f"base_model.repository={params.repository}"
        commit, source = download_model(params.repository, params.revision, "base_model", extra=[CARD])
        record = {"source": "hub", "repository": params.repository, "revision": params.revision, "commit": commit}
        record |= {"origin": read_origin(source) | {"name": params.repository}}
    else:
        raise InputError("base_model.source is hub, but base_model.repository is not set: set it to a model, user/name")
    size = check_architecture(source, model, key)
    _require_same_vocabulary(source, size, load_local_vocabulary(tokenizer, True).tokens, key)
    with new_folder(folder) as partial:
        report = import_model_folder(source, partial, sha256_of(find_tokenizer_file(tokenizer)), key)
        record |= dataclasses.asdict(report)
        write_json(partial / RECORD, record)
    return record


def check_architecture(source: Path, model: ModelParams, key: str) -> int:
    """Compare config.json of the model folder `source`, which `key` named, with the parameters.

    Returns:
        Number of word embeddings.

    Raises:
        InputError: not a supported model, or another architecture.
    """
    actual = read_architecture(source, key)
    with translate_device_errors(key):
        expected = adopt_weights(configure_model(actual.vocab_size, **model.model_dump()), actual)
    if differ := architecture_differences(expected, actual):
        options = " ".join(f"--set model.{text.split(', ')[0].replace(': ', '=')}" for text in differ)
        raise InputError(f"{key} differs from section model of the parameters ({'; '.join(differ)}). Use {options}")
    return actual.vocab_size


def check_model_folder(params: BaseModelParams, model: ModelParams, entries: Sequence[str] | None) -> None:
    """Check base_model.path before a tokenizer is made or weights are read; `entries` are those of a known vocabulary.

    Raises:
        InputError: not a model folder, no weights, not a supported model, another architecture or vocabulary.
    """
    source, key = Path(params.path), f"base_model.path={params.path}"
    require_config(source, key)
    size = check_architecture(source, model, key)
    if not list_weight_files(source):
        raise InputError(f"{key} {NO_WEIGHTS}")
    if entries is not None:
        _require_same_vocabulary(source, size, entries, key)


def _require_same_vocabulary(source: Path, size: int, entries: Sequence[str], key: str) -> None:
    """Require the tokenizer to have the entries that the weights were trained with, in the same order."""
    again = "Use the tokenizer of the model (tokenizer.source: hub or file)"
    has_tokenizer = any((source / name).is_file() for name in (TOKENIZER, VOCABULARY))
    if has_tokenizer and len(entries) > size:
        again = (
            "Tokens were added to the tokenizer: call resize_token_embeddings(len(tokenizer)) of the model, save both "
            "and train the new embeddings; or use the tokenizer without them"
        )
    if len(entries) > size or (len(entries) < size and not has_tokenizer):
        raise InputError(f"{key} has {size} word embeddings, but the tokenizer has {len(entries)} entries. {again}")
    if not has_tokenizer:
        return
    theirs = load_local_vocabulary(source, True, key.partition("=")[0]).tokens
    different = [number for number, pair in enumerate(zip(theirs, entries, strict=False)) if pair[0] != pair[1]]
    if different or len(theirs) != len(entries):
        at = different[0] if different else min(len(theirs), len(entries))
        model, run = (repr(words[at]) if at < len(words) else "nothing" for words in (theirs, entries))
        raise InputError(f"{key}: entry {at} of its vocabulary is {model}, but {run} in the tokenizer. {again}")


def format_summary(record: dict[str, Any]) -> str:
    """Return the stage's last line."""
    parts = [f"{record['architecture']} with {record['parameters']:,} parameters"]
    if record["widened"]:
        kinds = ", ".join(f"{count} in {kind}" for kind, count in record["widened"].items())
        parts.append(f"{kinds}, converted to fp32")
    if record["left_out"]:
        parts.append(f"not used: {', '.join(record['left_out'])}")
    if record["missing"]:
        parts.append(f"missing, and initialized at random if a job needs them: {', '.join(record['missing'])}")
    return f"base model: {'; '.join(parts)}"


def preload() -> None:
    """Import what the stage needs later (tasks/stage/fork_server.py)."""
    importlib.import_module("torch")


def main() -> None:
    parse_no_arguments("Import the BERT to start from, from a folder or the Hub.")
    params = load_sections("base_model", "model")
    print(format_summary(write_base_model(params.base_model, params.model)))


if __name__ == "__main__":
    run_main(main)
