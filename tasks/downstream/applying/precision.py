"""Where a finished model is computed: in the precision of the scores that its release or its run states."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipu_model.files import find_object
from tasks.downstream.applying.model import PROVENANCE
from tasks.downstream.jobs.entry_jobs import PREDICT
from tasks.project import artifacts, streams
from tasks.project.param_sections import PRECISIONS, Place


def choose_place(model: Path, runtime: str, precision: str | None) -> Place:
    """Return where and in which precision a model is computed.

    Args:
        model: the folder.
        precision: as the user says; None: on IPUs auto, elsewhere that of the scores which the release or run states,
            so that they come out again; fp32 where none is stated.
    """
    if precision is None and runtime == "ipu":
        return Place(runtime, "auto")
    chosen = precision or read_precision(model) or "fp32"
    if precision is None and chosen == "fp16":
        streams.note("the scores of this model were computed in fp16, which only IPUs have: fp32 is used here")
        chosen = "fp32"
    return Place(runtime, chosen)


def read_precision(model: Path) -> str | None:
    """Return the precision that predicted the development sets of a model.

    A release states it in provenance.json; of models/NAME in a checkout metrics/NAME-predict.json does.

    Args:
        model: the folder.

    Returns:
        fp32, bf16 or fp16; None: nothing states it.
    """
    released = find_object(model / PROVENANCE)
    if released is None:
        folder = model.resolve()
        return _precision_in(find_object(folder.parent.parent / artifacts.metrics_file(folder.name, PREDICT)))
    return _precision_in(released.get("prediction"))


def _precision_in(figures: Any) -> str | None:
    """Return the precision in the figures of a prediction, or of the first split where there are several."""
    if not isinstance(figures, Mapping):
        return None
    if "precision" in figures:
        return figures["precision"] if figures["precision"] in PRECISIONS else None
    return next((value for one in figures.values() if (value := _precision_in(one))), None)
