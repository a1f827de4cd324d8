"""Ask a model a question about a text (`podium ask`).

The model is a published folder, a model folder and a tokenizer, or the name of a Hub repository. The answer is the one
that `pipeline("question-answering", MODEL)` of transformers 4 gives, found on our own path: features, packed rows,
predict job, spans. Two differences: "[SEP]" and the like in a text are ordinary characters here, and an answer has as
many tokens at most as in `podium predict` and `podium evaluate` (max_answer_len is 15 there). A model that was trained
to gives no answer, an empty text, as the pipeline does with handle_impossible_answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_model.files import sha256_of
from tasks.downstream.applying.model import FoundModel
from tasks.downstream.squad.params import AnswerParams
from tasks.downstream.squad.question_model import WindowShape
from tasks.project import artifacts, streams
from tasks.project.errors import InputError
from tasks.project.param_sections import Place

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tasks.downstream.squad.answers import Answer
    from tasks.downstream.squad.features import Features
    from tasks.downstream.squad.windows import Windows

MAX_ANSWER_LENGTH = AnswerParams().max_answer_length
ROWS_AT_ONCE = 8
CONTINUING = "##"
"""Begins a WordPiece token that goes on with a word."""
CPU = Place("cpu", "fp32")


def ask(
    model: FoundModel,
    question: str,
    context: str,
    shape: WindowShape,
    *,
    top: int = 1,
    max_answer_length: int = MAX_ANSWER_LENGTH,
    place: Place = CPU,
    null_threshold: float | None = None,
) -> list[Answer]:
    """The most probable answers, best first, at most `top`, at least one.

    Args:
        model: from `find_model`.
        question: what is asked.
        context: the text that holds the answer.
        shape: from `WindowShape.for_model`.
        top: distinct answers wanted.
        max_answer_length: tokens.
        place: where the model is computed.
        null_threshold: odds above which no answer is given, an empty text; None: one is always given.

    Raises:
        InputError: question or context empty, or the question too long for a window.
        DeviceJobFailed: the model cannot be used on this device.
    """
    ((answers, _),) = _ask_in([place], model, question, context, shape, top, max_answer_length, null_threshold)
    return answers


def compare(
    model: FoundModel,
    question: str,
    context: str,
    shape: WindowShape,
    first: Place,
    second: Place,
    max_answer_length: int = MAX_ANSWER_LENGTH,
    null_threshold: float | None = None,
) -> tuple[Answer, Answer, dict[str, Any]]:
    """The best answers of the same model in two places, and what `parity.logit_differences` says of its logits.

    Raises:
        InputError, DeviceJobFailed: as `ask`.
    """
    from tasks.downstream.parity import logit_differences
    from tasks.downstream.squad.scores import flat_logits

    found = _ask_in([first, second], model, question, context, shape, 1, max_answer_length, null_threshold)
    (one, before), (two, after) = found
    return one[0], two[0], logit_differences(flat_logits(before), flat_logits(after), ["question"])


def _ask_in(
    places: Sequence[Place],
    model: FoundModel,
    question: str,
    context: str,
    shape: WindowShape,
    top: int,
    max_answer_length: int,
    null_threshold: float | None,
) -> list[tuple[list[Answer], Windows]]:
    """Answers and logits in every place."""
    from tasks.downstream.squad.answers import probable_answers
    from tasks.downstream.squad.windows import read_windows
    from tasks.reading.model_folders import as_safetensors
    from tasks.vocabulary.encoding import load_tokenizer, tokenizer_file

    for what, text in (("question", question), ("context", context)):
        if not text.strip():
            raise InputError(f"the {what} is empty: state a question and a text that holds its answer")
    tokenizer = load_tokenizer(model.tokenizer)
    features, words = _features(tokenizer, question, context, shape)
    _note_unknown(tokenizer, features)
    found = []
    for place in places:
        with (
            as_safetensors(model.folder, tokenizer_file(model.tokenizer)) as weights,
            tempfile.TemporaryDirectory(prefix="podium-ask-") as scratch,
        ):
            folder = Path(scratch)
            _predict(replace(model, folder=weights), tokenizer, features, shape.row_length, folder, place)
            windows = read_windows(folder / "rows" / artifacts.FEATURES, folder / "logits.arrow", ["question"])
        answers = probable_answers(
            windows,
            context,
            words,
            top=top,
            max_answer_length=max_answer_length,
            null_threshold=null_threshold,
        )
        if not answers:
            raise InputError("the tokenizer finds no token in the context: it holds only characters that are dropped")
        found.append((answers, windows))
    return found


def _features(tokenizer: Tokenizer, question: str, context: str, shape: WindowShape) -> tuple[Features, Any]:
    """The windows, and for every context token in them the number of its word, which is its own within a window."""
    import numpy as np

    from tasks.downstream.squad.features import SPECIAL_PER_FEATURE, make_features
    from tasks.rows.row_files import ranges

    length = len(tokenizer.encode(question, add_special_tokens=False).ids)
    room = shape.row_length - SPECIAL_PER_FEATURE - length
    if room <= shape.doc_stride:
        most = length + room - shape.doc_stride - 1
        raise InputError(
            f"the question has {length} tokens, at most {most} fit beside a context (windows of "
            f"{shape.row_length} tokens that share {shape.doc_stride}); shorten it, or set --row-length "
            "and --doc-stride"
        )
    features = make_features(
        tokenizer, [question], [context], shape.row_length, shape.doc_stride, max_question_length=max(length, 1)
    )
    first_tokens = np.cumsum(features.lengths) - features.lengths
    tokens = features.token_ids[ranges(first_tokens + features.context_starts, features.context_lengths)]
    begins = np.ones(tokenizer.get_vocab_size(with_added_tokens=True), dtype=np.int64)
    begins[[number for token, number in tokenizer.get_vocab().items() if token.startswith(CONTINUING)]] = 0
    return features, np.cumsum(begins[tokens])


def _note_unknown(tokenizer: Tokenizer, features: Features) -> None:
    """Warn of a text that the vocabulary does not fit."""
    from tasks.rows.unknown import UnknownTokens
    from tasks.vocabulary.encoding import read_vocabulary

    vocabulary = read_vocabulary(tokenizer)
    unknown = UnknownTokens(vocabulary.unk, (vocabulary.cls, vocabulary.sep))
    unknown.add(features.token_ids, features.token_ids != vocabulary.pad)
    if unknown.warning:
        streams.note(unknown.warning)


def _predict(
    model: FoundModel, tokenizer: Tokenizer, features: Features, row_length: int, folder: Path, place: Place
) -> None:
    """Write folder/rows and folder/logits.arrow."""
    from tasks.downstream.squad.rows import write_feature_rows
    from tasks.jobs.device_job import BatchGeometry, Job, run_device_job
    from tasks.vocabulary.encoding import tokenizer_file

    write_feature_rows(
        folder / "rows",
        features,
        ["question"],
        row_length=row_length,
        max_sequences=1,
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
        tokenizer_sha256=sha256_of(tokenizer_file(model.tokenizer)),
    )
    job = Job(
        kind="predict",
        head="question_answering",
        rows=str(folder / "rows"),
        output=str(folder / "logits.arrow"),
        run_folder=str(folder / "run"),
        geometry=BatchGeometry(ROWS_AT_ONCE, ROWS_AT_ONCE),
        runtime=place.runtime,
        precision=place.precision,
        init_checkpoint=str(model.folder.resolve()),
    )
    run_device_job(job, say=lambda _: None)  # standard output belongs to the answer


def as_values(answers: list[Answer]) -> dict[str, Any]:
    """The best answer under the pipeline's keys (answer, score, start, end), and all of them in `answers`."""
    records = [{"answer": a.text, "score": round(a.score, 6), "start": a.start, "end": a.end} for a in answers]
    return {**records[0], "answers": records}
