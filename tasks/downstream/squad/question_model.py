"""The model that answers one question, and how a long context is cut for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import read_json, sha256_of
from tasks.downstream.applying import model
from tasks.downstream.applying.model import FoundModel
from tasks.project import artifacts
from tasks.project.errors import InputError

ARCHITECTURE = "BertForQuestionAnswering"
SETTINGS, NULL_THRESHOLD = "podium.json", "null_threshold"
MAX_ROW_LENGTH, MAX_DOC_STRIDE = 384, 128
"""The defaults of transformers 4's pipeline (max_seq_len, doc_stride)."""


def find_model(name: str, tokenizer: Path | None = None) -> FoundModel:
    """The model folder or Hub repository `name`, checked.

    Raises:
        InputError: as `applying.model.find_model`, or it does not answer questions.
    """
    found = model.find_model(name, tokenizer)
    if found.architectures and ARCHITECTURE not in found.architectures:
        raise InputError(
            f"{found.folder} holds {', '.join(found.architectures)}: only {ARCHITECTURE} answers questions; "
            "name the fine-tuned model (models/squad or its published folder)"
        )
    return found


def null_threshold_of(folder: Path) -> float | None:
    """The odds above which the model of a folder gives no answer; None: it always gives one.

    A release states them in podium.json. Of models/NAME in a checkout metrics/NAME.json does, as long as it is about
    these very weights.

    Raises:
        InputError: what is stated is no number.
    """
    own = folder.resolve()
    for path in (folder / SETTINGS, own.parent.parent / artifacts.metrics_file(own.name)):
        try:
            values = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except ValueError:
            raise InputError(f"{path} is not JSON; make or download it again") from None
        if not isinstance(values, dict) or NULL_THRESHOLD not in values:
            continue
        if type(values[NULL_THRESHOLD]) not in (int, float):
            raise InputError(f"{path}: {NULL_THRESHOLD} must be a number, found {values[NULL_THRESHOLD]!r:.40}")
        if path.name == SETTINGS or _is_about(values, folder / model.WEIGHTS):
            return float(values[NULL_THRESHOLD])
    return None


def _is_about(metrics: dict[str, Any], weights: Path) -> bool:
    """Whether a file of metrics was counted with these weights."""
    files = metrics.get("files", [])
    stated = [one.get("sha256") for one in files if Path(str(one.get("path"))).name == weights.name]
    return weights.is_file() and stated == [sha256_of(weights)]


@dataclass(frozen=True)
class WindowShape:
    """How a long context is cut: tokens of a window, and tokens that neighbouring windows share."""

    row_length: int
    doc_stride: int

    @staticmethod
    def for_model(found: FoundModel, row_length: int | None = None, doc_stride: int | None = None) -> WindowShape:
        """The given lengths, else the pipeline's: 384 or what the model takes, and 128 or half of that.

        Raises:
            InputError: longer than the model takes.
        """
        if row_length is not None and row_length > found.longest:
            raise InputError(f"--row-length {row_length} is too long: this model takes {found.longest} tokens at most")
        length = min(MAX_ROW_LENGTH, found.longest) if row_length is None else row_length
        return WindowShape(length, min(length // 2, MAX_DOC_STRIDE) if doc_stride is None else doc_stride)
