"""Export of any finished model, without examples."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.core.files import new_folder, read_json, write_json
from tasks.downstream.export.onnx_files import (
    COMPARED,
    compare_with_transformers,
    copy_files,
    load_model,
    write_formats,
)
from tasks.downstream.gate.exports import MAX_LOGIT_DIFFERENCE
from tasks.downstream.inference.entry import TAKEN, infer_entry
from tasks.downstream.inference.model import CONFIG, PROVENANCE, InferenceModel
from tasks.downstream.inference.onnx_answers import EncodedSequence
from tasks.downstream.kind import kind_of
from tasks.downstream.scoring.thresholds import SETTINGS, read_recorded
from tasks.models.model_folders import convert_to_safetensors
from tasks.params.downstream import EntryParams
from tasks.stage.artifacts import EXPORT_FILES
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import find_tokenizer_file

LONGEST = 64
"""Maximum length of sequences of random tokens."""


def draw_sequences(vocabulary: int, longest: int, count: int) -> list[EncodedSequence]:
    """Return sequences of random tokens, always the same ones, of 4 tokens or more."""
    random = np.random.default_rng(count)
    inputs = [random.integers(0, vocabulary, length) for length in random.integers(4, longest, count)]
    return [EncodedSequence(number, ids, np.zeros_like(ids)) for number, ids in enumerate(inputs)]


def record_entry(folder: Path, model: InferenceModel, trained: Mapping[str, object]) -> None:
    """Write what a release states about using its model: rows, evaluation, and what held-out examples decided."""
    entry, recorded = infer_entry(model, run=trained), read_recorded(model.folder)
    others = EntryParams.model_fields.keys() - {"kind", *TAKEN}
    parameters = {name: value for name, value in trained.items() if name not in others}
    write_json(folder / PROVENANCE, {"parameters": {"downstream": {"exported": parameters}}})
    if settings := kind_of(entry).scores(entry).settings(recorded) if recorded else {}:
        write_json(folder / SETTINGS, settings)
        write_json(folder / CONFIG, {**read_json(folder / CONFIG), "podium": settings})


def export_model(
    model: InferenceModel, folder: Path, formats: Sequence[str], trained: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Write a finished model in these formats into a new folder, with configuration and tokenizer.

    Args:
        trained: parameters of the entry in the run that trained the model; empty or None for any other model.

    Returns:
        The size of each file, and the largest difference of a logit of the first one from transformers.

    Raises:
        InputError: the folder exists, the model cannot be exported, or the fp32 file does not compute what it does.
    """
    if folder.exists():
        raise InputError(f"{folder} already exists. Move it away, or pass another folder with --out")
    with (
        new_folder(folder) as target,
        convert_to_safetensors(model.folder, find_tokenizer_file(model.tokenizer)) as readable,
    ):
        loaded = load_model(readable)
        files = write_formats(loaded, formats, target)
        copy_files(target, readable, model.folder, model.tokenizer)
        if trained:
            record_entry(target, model, trained)
        sequences = draw_sequences(loaded.config.vocab_size, min(model.max_tokens, LONGEST), COMPARED)
        apart = compare_with_transformers(loaded, files[formats[0]], sequences)
        limit = MAX_LOGIT_DIFFERENCE.get(formats[0], math.inf)
        if apart is None or apart > limit:
            raise InputError(f"{formats[0]}: logits differ by {apart} from transformers, {limit:g} is the limit")
    return {
        "bytes": {EXPORT_FILES[form]: (folder / EXPORT_FILES[form]).stat().st_size for form in formats},
        "transformers_difference": apart,
    }
