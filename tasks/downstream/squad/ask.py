"""Answer one question about a text (`podium predict MODEL --text QUESTION --context TEXT`).

The model is a published folder, a model folder with a tokenizer, or a Hub repository. The answer equals that of
`pipeline("question-answering", MODEL)` of transformers 4, but is computed with Podium's features, packed rows, predict
job and decoding. There are two differences: "[SEP]" and other special tokens in a text are ordinary characters here,
and the maximum answer length is that of `podium predict` and `podium evaluate` (max_answer_len is 15 in the pipeline).
A model trained on unanswerable questions may return an empty text, as the pipeline does with handle_impossible_answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tasks.downstream.inference.entry import NAME
from tasks.downstream.inference.job import InferenceOptions, run_inference, scratch_checkout
from tasks.downstream.inference.model import InferenceModel
from tasks.downstream.inference.model import find_model as find_any_model
from tasks.downstream.parity import logit_differences
from tasks.downstream.scoring.logits import Array
from tasks.downstream.squad.answers import Answer, SquadWindows, probable_answers
from tasks.downstream.squad.examples import write_questions
from tasks.downstream.squad.kind import Squad
from tasks.downstream.squad.params import SquadEvaluateParams, SquadParams
from tasks.downstream.squad.questions import SquadQuestion
from tasks.downstream.squad.scores import flat_logits
from tasks.params.downstream import defaults_of
from tasks.params.entries import Entry
from tasks.params.schema import validate_section
from tasks.params.sections import RuntimeSpec
from tasks.rows.row_files import concatenate_ranges
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import find_word_numbers, load_tokenizer

MAX_ANSWER_LENGTH = SquadEvaluateParams().max_answer_length
ROWS_AT_ONCE = 8
CPU = RuntimeSpec("cpu", "fp32")
MAX_ROW_LENGTH, MAX_DOC_STRIDE = 384, 128
"""Defaults of transformers 4's pipeline (max_seq_len, doc_stride)."""


def find_model(name: str, tokenizer: Path | None = None, instead: str = "") -> InferenceModel:
    """Return a model folder or Hub repository for question answering.

    Args:
        instead: command that classifies with a model, for the message about such a model.

    Raises:
        InputError: as `find_any_model`, or the model is for another task.
    """
    model = find_any_model(name, tokenizer)
    suffix = Squad.suffix
    if model.architectures and not any(name.endswith(suffix) for name in model.architectures):
        if instead and any(name.endswith("Classification") for name in model.architectures):
            raise InputError(f"{model.folder} is {', '.join(model.architectures)}, not for questions. Run {instead}")
        raise InputError(
            f"{model.folder} is {', '.join(model.architectures)}, a class ...{suffix} is required. Name a "
            "model fine-tuned on questions (models/squad or its published folder)"
        )
    return model


@dataclass(frozen=True)
class WindowShape:
    """Windows of a long context: length and overlap in tokens."""

    row_length: int
    doc_stride: int

    @staticmethod
    def for_model(model: InferenceModel, row_length: int | None = None, doc_stride: int | None = None) -> WindowShape:
        """Return the requested lengths; default: 384 or the model's maximum, and 128 or half the length.

        Raises:
            InputError: longer than the model supports.
        """
        if row_length is not None and row_length > model.max_tokens:
            raise InputError(
                f"--row-length {row_length} is too long: this model supports up to {model.max_tokens} tokens"
            )
        length = min(MAX_ROW_LENGTH, model.max_tokens) if row_length is None else row_length
        return WindowShape(length, min(length // 2, MAX_DOC_STRIDE) if doc_stride is None else doc_stride)


def ask(
    model: InferenceModel,
    question: str,
    context: str,
    shape: WindowShape,
    *,
    spec: RuntimeSpec = CPU,
    top: int = 1,
    max_answer_length: int = MAX_ANSWER_LENGTH,
    null_threshold: float | None = None,
) -> tuple[list[Answer], SquadWindows]:
    """Return the most probable answers, best first, at least one and at most `top`, and the logits.

    Args:
        model: from `find_model`.
        shape: from `WindowShape.for_model`.
        max_answer_length: maximum length in tokens.
        null_threshold: odds above which the answer is empty; None: always return an answer.

    Raises:
        InputError: question or context empty, or the question too long for a window.
        DeviceJobFailed: the model cannot run on this device.
    """
    for what, text in (("question", question), ("context", context)):
        if not text.strip():
            raise InputError(f"the {what} is empty. A question and a text with its answer are required")
    windows = _predict(model.with_absolute_paths(), question, context, shape, spec)
    answers = probable_answers(
        windows,
        context,
        number_words(load_tokenizer(model.tokenizer), windows, context, shape),
        top=top,
        max_answer_length=max_answer_length,
        null_threshold=null_threshold,
    )
    if not answers:
        raise InputError("the context has no tokens: the tokenizer drops all its characters")
    return answers, windows


def compare_logits(first: SquadWindows, second: SquadWindows) -> dict[str, object]:
    """Return `parity.logit_differences` of the logits that `ask` computed on two devices."""
    return logit_differences(flat_logits(first), flat_logits(second), ["question"])


def number_words(tokenizer: Tokenizer, windows: SquadWindows, context: str, shape: WindowShape) -> Array:
    """Return the word number of every context token of the windows, unique within a window."""
    words, counts = find_word_numbers(tokenizer, context), np.diff(windows.bounds)
    starts = np.arange(len(counts)) * (counts[0] - shape.doc_stride)  # all but the last window are full
    return words[concatenate_ranges(starts, counts)]


def _predict(model: InferenceModel, question: str, context: str, shape: WindowShape, spec: RuntimeSpec) -> SquadWindows:
    """Return the windows of the context with their logits; the question is never truncated."""
    params = validate_section(SquadParams, defaults_of("squad", NAME), "the defaults of squad")
    lengths = {"row_length": shape.row_length, "doc_stride": shape.doc_stride, "max_question_length": shape.row_length}
    rows = params.rows.model_copy(update={**lengths, "max_sequences_per_row": 1})
    entry, kind = Entry(NAME, params, rows, ""), Squad()
    [split] = entry.development
    with scratch_checkout(entry, model):
        write_questions([SquadQuestion("question", "", context, question, ())], entry.examples_file(split))
        run_inference(kind.encoder(entry), model, split, InferenceOptions(spec, ROWS_AT_ONCE, lambda _: None))
        _, logits = kind.inference(entry).scores.read_split(split)
        return logits.read()


def answer_record(answers: list[Answer]) -> dict[str, object]:
    """Return the best answer with the pipeline's keys (answer, score, start, end), and all answers in `answers`."""
    records = [{"answer": a.text, "score": round(a.score, 6), "start": a.start, "end": a.end} for a in answers]
    return {**records[0], "answers": records}
