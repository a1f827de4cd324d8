"""Stage base_model: a BERT to start from, taken from a folder or the Hub, in place of untrained weights.

    python -m tasks.pretraining.base_model

What is taken in is a model folder in Hugging Face layout: config.json with safetensors, whole or in shards, or
PyTorch's own file, which is read as tensors and nothing else. It comes out as a model folder of ours beside
`base_model.json`, which says what was read, what was left out and what is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipu_model.files import new_folder, sha256_of, write_json
from tasks.models.model_card import CARD, read_origin
from tasks.models.model_folders import (
    NO_WEIGHTS,
    download_model,
    read_architecture,
    require_config,
    take_in,
    weight_paths,
)
from tasks.params.schema import ModelParams, load_sections
from tasks.params.sections import BaseModelParams
from tasks.plan.main import run_main
from tasks.plan.named_files import require_readable
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.process import takes_no_words
from tasks.vocabulary.encoding import load_tokenizer, tokenizer_file
from tasks.vocabulary.hub_tokenizer import TOKENIZER, VOCABULARY, given_vocabulary

RECORD = "base_model.json"


def write_base_model(
    params: BaseModelParams,
    model: ModelParams,
    tokenizer: Path = artifacts.TOKENIZER,
    folder: Path = artifacts.BASE_MODEL,
) -> dict[str, Any]:
    """Write `folder`, whole or not at all.

    Args:
        params: section `base_model`.
        model: section `model`: the architecture that the rest of the run is made for.
        tokenizer: folder of the tokenizer that makes the rows.

    Returns:
        What is in `base_model.json`.

    Raises:
        InputError: no such model, no BERT that is computed here, weights incomplete or unsafe to read, or another
            architecture or vocabulary than the parameters and the tokenizer have.
    """
    with new_folder(folder) as partial:
        record = _take_in(params, model, tokenizer, partial)
        write_json(partial / RECORD, record)
    return record


def _take_in(params: BaseModelParams, model: ModelParams, tokenizer: Path, target: Path) -> dict[str, Any]:
    if params.source == "folder":
        source, key = Path(params.path), f"base_model.path={params.path}"
        require_readable(source, "base_model.path")
        require_config(source, key)
        record: dict[str, Any] = {"source": "folder", "path": params.path, "origin": read_origin(source)}
        return record | import_checked(source, model, tokenizer, target, key)
    if params.source == "none":
        raise InputError("base_model.source is none: there is no model to take in; set it to folder or hub")
    if not params.repository:
        raise InputError("base_model.source is hub and base_model.repository is not set: set it to a model, user/name")
    key = f"base_model.repository={params.repository}"
    commit, source = download_model(params.repository, params.revision, "base_model", extra=[CARD])
    record = {"source": "hub", "repository": params.repository, "revision": params.revision, "commit": commit}
    record |= {"origin": read_origin(source) | {"name": params.repository}}
    return record | import_checked(source, model, tokenizer, target, key)


def import_checked(source: Path, model: ModelParams, tokenizer: Path, target: Path, key: str) -> dict[str, Any]:
    """Take the model folder `source` in as `target`, once it is known to be the one the parameters speak of.

    Args:
        key: the parameter that named it, for messages.

    Returns:
        What was read, left out and found missing.

    Raises:
        InputError: see write_base_model.
    """
    size = check_architecture(source, model, key)
    vocabulary = load_tokenizer(tokenizer).get_vocab(with_added_tokens=True)
    _same_vocabulary(source, size, sorted(vocabulary, key=lambda entry: vocabulary[entry]), key)
    return dataclasses.asdict(take_in(source, target, sha256_of(tokenizer_file(tokenizer)), key))


def check_architecture(source: Path, model: ModelParams, key: str) -> int:
    """Compare config.json of the model folder `source` with the parameters; no weight is read.

    Args:
        key: the parameter that named it, for messages.

    Returns:
        How many word embeddings it has.

    Raises:
        InputError: no BERT that is computed here, or another architecture.
    """
    from ipu_model.errors import DeviceJobError
    from ipu_model.models.architecture import differences
    from ipu_model.models.config import ModelConfig

    found = read_architecture(source, key)
    try:
        stated = ModelConfig(vocab_size=found.vocab_size, type_vocab_size=found.type_vocab_size, **model.model_dump())
    except DeviceJobError as error:
        raise InputError(f"{key}: {error}") from None
    if differ := differences(stated, found):
        wanted = " ".join(f"--set model.{text.split(', ')[0].replace(': ', '=')}" for text in differ)
        raise InputError(f"{key} is another model than section model states ({'; '.join(differ)}): {wanted}")
    return found.vocab_size


def check_folder(params: BaseModelParams, model: ModelParams, entries: Sequence[str] | None) -> None:
    """What can be known of base_model.path before a tokenizer is made or a weight is read.

    Args:
        params: section `base_model`, whose source is `folder`.
        model: section `model`.
        entries: of the vocabulary, where it is known already.

    Raises:
        InputError: no model folder, no weights in it, no BERT that is computed here, another architecture or, where it
            is known, another vocabulary.
    """
    source, key = Path(params.path), f"base_model.path={params.path}"
    require_config(source, key)
    size = check_architecture(source, model, key)
    if not weight_paths(source):
        raise InputError(f"{key} {NO_WEIGHTS}")
    if entries is not None:
        _same_vocabulary(source, size, entries, key)


def _same_vocabulary(source: Path, size: int, entries: Sequence[str], key: str) -> None:
    """The entries of the tokenizer must be those that the weights were trained with, in the same order."""
    again = "take its own tokenizer (tokenizer.source: hub or file)"
    if len(entries) != size:
        raise InputError(f"{key} has {size} word embeddings, the tokenizer {len(entries)} entries: {again}")
    if not any((source / name).is_file() for name in (TOKENIZER, VOCABULARY)):
        return
    theirs = given_vocabulary(source, True, key.partition("=")[0]).tokens
    different = [number for number, pair in enumerate(zip(theirs, entries, strict=False)) if pair[0] != pair[1]]
    if different or len(theirs) != size:
        at = different[0] if different else min(len(theirs), size)
        said = [repr(words[at]) if at < len(words) else "nothing" for words in (theirs, entries)]
        raise InputError(f"{key}: entry {at} of its vocabulary is {said[0]}, that of the tokenizer {said[1]}: {again}")


def summary(record: dict[str, Any]) -> str:
    """The stage's last line."""
    words = [f"{record['architecture']} with {record['parameters']:,} parameters"]
    if record["widened"]:
        kinds = ", ".join(f"{count} in {kind}" for kind, count in record["widened"].items())
        words.append(f"{kinds}, kept in fp32")
    if record["left_out"]:
        words.append(f"not used: {', '.join(record['left_out'])}")
    if record["missing"]:
        words.append(f"not there, and drawn fresh where a job needs them: {', '.join(record['missing'])}")
    return f"base model: {'; '.join(words)}"


def main() -> None:
    takes_no_words("Stage base_model: a BERT to start from, taken from a folder or the Hub.")
    params = load_sections("base_model", "model")
    print(summary(write_base_model(params.base_model, params.model)))


if __name__ == "__main__":
    run_main(main)
