"""Device jobs of a plan before it runs, built by the stages' own functions from estimated row manifests.

Only manifests and a list of assumptions describe the rows. The stages build their jobs in a checkout that contains
nothing else, so the estimated job is exactly the one that will run.
"""

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.downstream.jobs.entry_jobs import build_finetune_job, build_predict_job
from tasks.jobs.device_job import Job
from tasks.models.model_folders import CONFIG, find_cached_folder, keeps_settings, read_architecture
from tasks.params.entries import TRAIN, Entry, entries, find_entry
from tasks.params.schema import Params, apply_packing
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.pretraining.rows.masking import default_max_predictions
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import HELD_OUT, MANIFEST, Manifest, read_manifest
from tasks.stage.scratch import scratch_folder

PRETRAIN, FINETUNE, PREDICT = "pretrain", "finetune", "predict"
"""Groups of stages with device jobs that are estimated."""
FILL = 0.98
"""Assumed share of real tokens in a packed row; histogram packing reaches it if sequences have all lengths."""
PACKING_FACTORS = ((64, 1.1), (128, 1.17), (384, 1.7), (512, 2.0))
"""Row length -> sequences per packed row of pre-training on Wikipedia, from 128 on as in Graphcore's examples
(graphcore/examples: nlp/bert/pytorch/args.py). Its inverse is the share of real tokens in an unpacked row."""
NAMELESS = 100_000
"""Assumed number of examples if it is unknown: about the size of SQuAD."""
LABELS = 3
"""Assumed number of classes if only the data have them."""
DEMO_TOKENS = 48
"""Tokens per sequence of the demo's text: a run had 45 in rows of 64 tokens and 50 in rows of 128."""
BERT_VOCABULARY = 30522
"""Vocabulary size of bert-base-uncased, assumed for a tokenizer that is not here."""
TEXT_ROWS = 1 << 20
"""Assumed number of pre-training rows; a recipe sets the updates, so only too few rows would matter."""
SHARE_OF_DEV = 0.1
"""Assumed number of development examples relative to training examples, if it is unknown."""


@dataclass(frozen=True)
class PlannedRows:
    """A folder of rows."""

    manifest: Manifest
    assumed: tuple[str, ...] = ()
    """Assumptions; empty if the folder exists."""


Folders = dict[Path, PlannedRows]
"""Folder relative to a checkout -> its rows."""


class RowEstimator:
    """Known and assumed rows of a run; see `planned_jobs` for the arguments."""

    def __init__(self, params: Params, project: Path, root: Path, remade: Collection[str]) -> None:
        self._params, self._project, self._root, self._remade = params, project, root, remade
        self.vocabulary, self.vocabulary_known, self._vocabulary_assumed = self._find_vocabulary()

    def all(self) -> Folders:
        """Return every folder of rows that a device job reads."""
        folders: Folders = {}
        for phase in self._params.pretrain.list_phases():
            folders |= self._phase(phase)
        for entry in entries(self._params):
            folders |= self._entry(entry)
            if entry.training_rows is not None:
                folders[entry.training_rows] = folders[entry.rows_folder(TRAIN)]
        return folders

    def _find_vocabulary(self) -> tuple[int, bool, tuple[str, ...]]:
        """Return the size of the vocabulary, True if a file states it for certain, and the assumption about it.

        The word table of a base model may have more rows than its tokenizer has entries.
        """
        tokenizer, base = self._params.tokenizer, self._params.base_model
        if base.source == "folder" and (self._project / base.path / CONFIG).is_file():
            return read_architecture(self._project / base.path, "base_model.path").vocab_size, True, ()
        known = base.source == "none"
        manifests = (
            sorted((self._root / artifacts.ROWS).glob(f"*/**/{MANIFEST}")) if "tokenizer" not in self._remade else []
        )
        if rows := next(filter(None, (_read(path.parent) for path in manifests)), None):
            return rows.vocab_size, known, ()
        if tokenizer.source == "train":
            return tokenizer.vocabulary_size, False, ()
        if tokenizer.source == "file" and (lines := _lines_of(self._project / tokenizer.path)):
            return lines, known, ()
        return BERT_VOCABULARY, False, (f"a vocabulary of {BERT_VOCABULARY:,}, as in BERT",)

    def _find(self, folder: Path, stage: str) -> Manifest | None:
        """Return the manifest of a folder that the run will not make again."""
        return None if stage in self._remade else _read(self._root / folder)

    def _find_held_out(self, rows: Path, stage: str) -> Folders:
        known = self._find(rows / HELD_OUT, stage)
        return {} if known is None else {rows / HELD_OUT: PlannedRows(known)}

    def _phase(self, phase: str) -> Folders:
        folder, stage = artifacts.rows_folder(phase), f"pretrain_rows@{phase}"
        if (known := self._find(folder, stage)) is not None:
            return {folder: PlannedRows(known), **self._find_held_out(folder, stage)}
        section = apply_packing(self._params.pretrain_rows, self._params.packing)
        rows = getattr(section, phase)
        length, of = rows.row_length, "as for Wikipedia"
        factor = text_packing_factor(length)
        if self._params.corpus.source == "demo":
            factor, of = max(1.0, FILL * length / DEMO_TOKENS), "as for the demo's text"
        fill = 1 / factor
        words: tuple[str, ...] = ()
        if section.max_sequences_per_row == 1:
            factor = 1.0
        else:
            factor, fill = min(factor, float(section.max_sequences_per_row)), FILL
            words = (f"{factor:.3g} sequences per row of {length} tokens, {of}",)
        masked = rows.max_predictions_per_row or default_max_predictions(length, section.masked_fraction)
        shape = (section.row_kind, length, section.max_sequences_per_row, masked, self.vocabulary)
        counts = (TEXT_ROWS, round(TEXT_ROWS * factor), round(TEXT_ROWS * length * fill))
        manifest = Manifest(*shape, "", section.seed, *counts, files={})
        words = (*self._vocabulary_assumed, *words, f"{fill:.0%} real tokens per row")
        return {folder: PlannedRows(manifest, words), **_hold_out(folder, manifest, words, section.held_out_fraction)}

    def _entry(self, entry: Entry) -> Folders:
        train, stage = entry.rows_folder(TRAIN), entry.stage("rows")
        splits = [entry.rows_folder(split) for split in entry.splits]
        known = {folder: manifest for folder in splits if (manifest := self._find(folder, stage)) is not None}
        if len(known) == len(splits):
            return {
                **{folder: PlannedRows(manifest) for folder, manifest in known.items()},
                **self._find_held_out(train, stage),
            }
        examples, dev, assumed = self._examples(entry)
        of_train, words = self._downstream_rows(entry, examples)
        words = (*self._vocabulary_assumed, *assumed, *words)
        fraction = entry.rows.held_out_fraction
        ratios = {folder: dev / len(entry.development) / examples for folder in splits} | {train: 1 - fraction}
        planned = {folder: PlannedRows(take_share(of_train, ratio), words) for folder, ratio in ratios.items()}
        return {**planned, **_hold_out(train, of_train, words, fraction)}

    def _examples(self, entry: Entry) -> tuple[int, int, tuple[str, ...]]:
        """Return the numbers of training and development examples, and the assumptions about them."""
        expected, data, words = entry.params.expected, entry.params.data, list[str]()
        train, dev = expected.train, expected.dev
        file = self._project / (getattr(data, "train_path", None) or "")
        if train is None and getattr(data, "source", "") == "files" and file.is_file():
            size = file.stat().st_size
            train = max(1, size // expected.file_bytes)
            words.append(f"{train:,} examples, from the {size / 1e6:,.1f} MB of the file")
        if train is None:
            train = NAMELESS
            words.append(f"{train:,} examples, as the number is unknown")
        if dev is None:
            dev = max(1, round(train * SHARE_OF_DEV))
        limits = (getattr(data, "limit_train", None), getattr(data, "limit_dev", None))
        train, dev = (min(number, limit or number) for number, limit in zip((train, dev), limits, strict=True))
        return train, dev, tuple(words)

    def _downstream_rows(self, entry: Entry, examples: int) -> tuple[Manifest, tuple[str, ...]]:
        """Return the rows of this many examples of an entry, and the assumptions about them."""
        rows, tokens = entry.rows, entry.params.expected.tokens
        windows = max(1, math.ceil(tokens / rows.row_length))
        length = min(tokens, rows.row_length)
        factor = 1.0
        if rows.max_sequences_per_row > 1:
            factor = max(1.0, min(float(rows.max_sequences_per_row), FILL * rows.row_length / length))
        sequences = examples * windows
        shape = (entry.params.row_kind, rows.row_length, rows.max_sequences_per_row, 0, self.vocabulary)
        counts = (max(1, round(sequences / factor)), sequences, sequences * length)
        manifest = Manifest(*shape, "", 0, *counts, files={}, num_labels=len(entry.params.labels) or LABELS)
        packing = [f"{factor:.2g} sequences per row"] if factor > 1 else []
        return manifest, (f"{length} tokens per sequence", *packing)


def _read(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except InputError:
        return None


def _hold_out(folder: Path, manifest: Manifest, words: tuple[str, ...], fraction: float) -> Folders:
    return {folder / HELD_OUT: PlannedRows(take_share(manifest, fraction), words)} if fraction else {}


def text_packing_factor(row_length: int) -> float:
    """Return sequences per packed row of pre-training, interpolated linearly between PACKING_FACTORS, and extended
    from the last two to longer rows."""
    lengths, factors = np.transpose(PACKING_FACTORS)
    slope = (factors[-1] - factors[-2]) / (lengths[-1] - lengths[-2])
    return float(np.interp(row_length, lengths, factors) + slope * max(0, row_length - lengths[-1]))


def take_share(manifest: Manifest, ratio: float) -> Manifest:
    """Return a share of these rows, at least one row."""
    counts = {name: max(1, round(getattr(manifest, name) * ratio)) for name in ("rows", "sequences", "real_tokens")}
    return dataclasses.replace(manifest, **counts)


def _lines_of(path: Path) -> int:
    """Return the number of entries in a vocab.txt, or in that of a folder; 0 if there is none."""
    file = path / "vocab.txt" if path.is_dir() else path
    if file.suffix != ".txt" or not file.is_file():
        return 0
    return sum(bool(line.strip()) for line in file.read_bytes().splitlines())


def write_manifests(folders: Folders, checkout: Path) -> None:
    """Create a checkout that contains only these manifests."""
    for folder, rows in folders.items():
        (checkout / folder).mkdir(parents=True, exist_ok=True)
        alone = dataclasses.replace(rows.manifest, files={})
        (checkout / folder / MANIFEST).write_text(alone.to_json(), encoding="utf-8")


@dataclass(frozen=True)
class PlannedJob:
    """Device job that a stage will start."""

    stage: str
    split: str
    """Split that a prediction reads; empty for a training."""
    job: Job
    """Job with random weights, as no others exist yet; its rows are a folder relative to the checkout."""
    rows: PlannedRows
    vocabulary_known: bool
    """Its size is in a file; else it is assumed, or the most that will be trained."""

    @property
    def name(self) -> str:
        """Name of the stage, with the split if it has several."""
        return f"{self.stage} {self.split}".strip()


def planned_jobs(
    params: Params, project: Path, root: Path, stages: Sequence[str], remade: Collection[str] = ()
) -> list[PlannedJob]:
    """Return the jobs of these stages, in order.

    Args:
        project: base of relative paths in the parameters.
        root: checkout, which need not exist.
        stages: stages of the plan; those without a device job are skipped.
        remade: stages whose outs in the checkout the run will replace.

    Raises:
        InputError: an input file of a job cannot be used.
    """
    if not any(stage.partition("@")[0] in (PRETRAIN, FINETUNE, PREDICT) for stage in stages):
        return []
    estimator = RowEstimator(params, project, root, remade)
    folders = estimator.all()
    # The base of relative paths in the parameters is not the folder of the manifests.
    config = str((project / params.ipu.config).absolute()) if params.ipu.config else ""
    changed = params.model_copy(update={"ipu": params.ipu.model_copy(update={"config": config})})
    settings = _read_settings(params, project)
    with scratch_folder() as scratch:
        write_manifests(folders, scratch)
        known = estimator.vocabulary_known
        return [job for stage in stages for job in _jobs_of(stage, changed, folders, scratch, settings, known)]


def _read_settings(params: Params, project: Path) -> dict[str, Any] | None:
    """Return config.json of an encoder with more in it than sizes; None if it is not on this host."""
    base_model = params.base_model
    if not keeps_settings(params.model.family) or base_model.source == "none":
        return None
    folder = project / base_model.path if base_model.source == "folder" else None
    if folder is None and base_model.repository is not None:
        folder = find_cached_folder(base_model.repository, base_model.revision)
    return None if folder is None else read_architecture(folder, "base_model").settings


def _jobs_of(
    stage: str, params: Params, folders: Folders, scratch: Path, settings: dict[str, Any] | None, known: bool
) -> Iterator[PlannedJob]:
    group, _, item = stage.partition("@")

    def plan(job: Job, split: str = "") -> PlannedJob:
        assert job.model is not None
        rows, model = Path(job.rows).relative_to(scratch), dataclasses.replace(job.model, settings=settings)
        return PlannedJob(stage, split, dataclasses.replace(job, rows=str(rows), model=model), folders[rows], known)

    if group == PRETRAIN:
        yield plan(make_pretrain_job(item, params, scratch, untrained=True))
    elif group == FINETUNE:
        yield plan(build_finetune_job(find_entry(params, item), params, scratch, untrained=True))
    elif group == PREDICT:
        entry = find_entry(params, item)
        for split in entry.predicted:
            job = build_predict_job(
                entry, params, entry.rows_folder(split, scratch), scratch, scratch, scratch, untrained=True
            )
            yield plan(job, split if len(entry.predicted) > 1 else "")
