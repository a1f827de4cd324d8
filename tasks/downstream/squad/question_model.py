"""Which model answers: a published folder, a model folder or a Hub repository, checked before anything runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import read_json
from tasks.project.given import leaves
from tasks.project.param_sections import HUB_NAME

READ = ("config.json", "model.safetensors", "podium.json", "tokenizer.json", "tokenizer_config.json")
"""Files of a model folder that are looked into."""
MAX_ROW_LENGTH, MAX_DOC_STRIDE = 384, 128
"""The defaults of transformers 4's pipeline (max_seq_len, doc_stride)."""


@dataclass(frozen=True)
class QuestionModel:
    """A model folder that was looked at: it is there, it answers questions, its tokenizer is known."""

    folder: Path
    tokenizer: Path
    """Folder of the tokenizer.json."""
    max_positions: int


def find_model(name: str, tokenizer: Path | None = None) -> QuestionModel:
    """The model folder or Hub repository `name`, checked.

    Args:
        name: a folder with config.json and model.safetensors, or a Hub repository.
        tokenizer: folder of the tokenizer.json; default: the model's own folder.

    Raises:
        InputError: no such folder or repository; config.json, weights or tokenizer missing; no
            question-answering model.
    """
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists():
            raise InputError(f"{folder} is a file: name the folder that holds config.json and model.safetensors")
        if not HUB_NAME.fullmatch(name) or (folder.parent != Path() and folder.parent.is_dir()):
            raise InputError(f"{folder} is not there: name a published folder, a model folder or a Hub repository")
        from tasks.reading.hub_models import download_model

        folder = download_model(name, READ)
    holder = folder if tokenizer is None else tokenizer
    _require_own_files(folder, holder)
    config = _config(folder)
    if not (folder / "model.safetensors").is_file():
        raise InputError(
            f"{folder / 'model.safetensors'} is missing: weights must be safetensors (pickled weights such as "
            "pytorch_model.bin are not read; convert them with save_pretrained(safe_serialization=True))"
        )
    if not (holder / "tokenizer.json").is_file():
        raise InputError(
            f"{holder / 'tokenizer.json'} is missing: a published folder has one; for a folder of models/ add "
            f"--tokenizer {artifacts.TOKENIZER}"
        )
    return QuestionModel(folder, holder, config["max_position_embeddings"])


def _require_own_files(*folders: Path) -> None:
    for folder in folders:
        for path in (folder / name for name in READ if (folder / name).is_symlink()):
            if leaves(path, folder):
                raise InputError(
                    f"{path} is a link to something outside of {folder}, which was not named: put the file itself in "
                    "its place (cp -rL copies a folder so), or name the folder that it leads to"
                )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {folder} is no model folder") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); publish or download the model again") from None
    if not isinstance(values, dict) or not isinstance(values.get("max_position_embeddings"), int):
        raise InputError(f"{path} is no configuration of a BERT: max_position_embeddings is missing")
    architectures = values.get("architectures")
    if architectures and "BertForQuestionAnswering" not in architectures:
        raise InputError(
            f"{folder} holds {', '.join(map(str, architectures))}: only BertForQuestionAnswering answers questions; "
            "name the fine-tuned model (models/squad or its published folder)"
        )
    return values


@dataclass(frozen=True)
class WindowShape:
    """How a long context is cut: tokens of a window, and tokens that neighbouring windows share."""

    row_length: int
    doc_stride: int

    @staticmethod
    def for_model(model: QuestionModel, row_length: int | None = None, doc_stride: int | None = None) -> WindowShape:
        """The given lengths, else the pipeline's: 384 or what the model bears, and 128 or half of that.

        Raises:
            InputError: longer than the model bears.
        """
        longest = min(model.max_positions, _model_max_length(model.tokenizer))
        if row_length is not None and row_length > longest:
            raise InputError(f"--row-length {row_length} is too long: this model bears {longest} tokens at most")
        length = min(MAX_ROW_LENGTH, longest) if row_length is None else row_length
        return WindowShape(length, min(length // 2, MAX_DOC_STRIDE) if doc_stride is None else doc_stride)


def _model_max_length(tokenizer: Path) -> int:
    """model_max_length of tokenizer_config.json; without one, no limit."""
    path = tokenizer / "tokenizer_config.json"
    try:
        value = read_json(path).get("model_max_length")
    except FileNotFoundError:
        return sys.maxsize
    except (ValueError, AttributeError):
        raise InputError(f"{path} is not a JSON object; publish or download the model again") from None
    return min(int(value), sys.maxsize) if isinstance(value, (int, float)) and value >= 1 else sys.maxsize
