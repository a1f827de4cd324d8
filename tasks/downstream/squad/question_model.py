"""The model that answers one question, and how a long context is cut for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.downstream.applying import model
from tasks.downstream.applying.model import FoundModel
from tasks.project.errors import InputError

ARCHITECTURE = "BertForQuestionAnswering"
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


@dataclass(frozen=True)
class WindowShape:
    """How a long context is cut: tokens of a window, and tokens that neighbouring windows share."""

    row_length: int
    doc_stride: int

    @staticmethod
    def for_model(found: FoundModel, row_length: int | None = None, doc_stride: int | None = None) -> WindowShape:
        """The given lengths, else the pipeline's: 384 or what the model bears, and 128 or half of that.

        Raises:
            InputError: longer than the model bears.
        """
        if row_length is not None and row_length > found.longest:
            raise InputError(f"--row-length {row_length} is too long: this model bears {found.longest} tokens at most")
        length = min(MAX_ROW_LENGTH, found.longest) if row_length is None else row_length
        return WindowShape(length, min(length // 2, MAX_DOC_STRIDE) if doc_stride is None else doc_stride)
