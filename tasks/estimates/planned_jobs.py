"""The device jobs of a plan before it runs, built by the stages' own functions from estimates of their rows.

Of the rows there are manifests alone, and what of them was assumed: a checkout that holds nothing else is enough for
the stages to build their jobs, so that what is estimated is the very job that will run.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.downstream.jobs.entry_jobs import finetune_job, predict_job
from tasks.jobs.device_job import Job
from tasks.params.entries import entries, entry_of
from tasks.params.schema import PHASES, Params, packed
from tasks.plan.kinds import TRAIN, DownstreamTask, load_spec
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.pretraining.rows.masking import default_max_predictions
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import HELD_OUT, MANIFEST, Manifest, read_manifest, read_manifest_alone

PRETRAIN, FINETUNE, PREDICT = "pretrain", "finetune", "predict"
"""Groups of stages that start device jobs which are estimated."""
FILL = 0.98
"""Of a packed row that is no padding, assumed: histogram packing reaches it where sequences have all lengths."""
PACKING_FACTORS = ((64, 1.1), (128, 1.17), (384, 1.7), (512, 2.0))
"""Row length -> sequences of a packed row of pre-training on Wikipedia, as Graphcore's examples state them from 128 on
(graphcore/examples: nlp/bert/pytorch/args.py); its inverse is the share of an unpacked row that is no padding."""
NAMELESS = 100_000
"""Examples that are assumed where nobody says how many there are: about as many as SQuAD has."""
LABELS = 3
"""Classes that are assumed where only the data name them."""
DEMO_TOKENS = 48
"""Of a sequence of the demo's text: 45 in rows of 64 tokens and 50 in rows of 128 were counted in a run of it."""
BERT_VOCABULARY = 30522
"""Of bert-base-uncased, assumed of a tokenizer that is not here."""
TEXT_ROWS = 1 << 20
"""Rows of pre-training, assumed: a recipe states updates, so that only too few of them would matter."""
SHARE_OF_DEV = 0.1
"""Development examples beside those of training, assumed where nobody says."""


@dataclass(frozen=True)
class Rows:
    """One folder of rows."""

    manifest: Manifest
    assumed: tuple[str, ...] = ()
    """In words, what was not known; empty where the folder is there."""


Folders = dict[Path, Rows]
"""Folder relative to a checkout -> its rows."""


class RowEstimator:
    """What is known of the rows of a run, and what is assumed of the others.

    Args:
        params: of the run.
        project: what paths of the parameters count from.
        root: the checkout, which need not be there.
        remade: stages whose outs in the checkout are not those that the run will have.
        kept: manifests that the checkout will have and has not yet -> where they are.
    """

    def __init__(
        self, params: Params, project: Path, root: Path, remade: Collection[str], kept: Mapping[str, Path]
    ) -> None:
        self._params, self._project, self._root, self._remade, self._kept = params, project, root, remade, kept
        self.vocabulary, self._vocabulary_assumed = self._find_vocabulary()

    def all(self) -> Folders:
        """Every folder of rows that a device job reads."""
        found: Folders = {}
        for phase in PHASES if self._params.pretrain.enabled else ():
            found |= self._phase(phase)
        for entry in entries(self._params):
            found |= self._entry(load_spec(entry))
        return found

    def _find_vocabulary(self) -> tuple[int, tuple[str, ...]]:
        stated = self._params.tokenizer
        made = sorted((self._root / artifacts.ROWS).glob(f"*/**/{MANIFEST}")) if "tokenizer" not in self._remade else []
        kept = (_read(read_manifest_alone, file) for file in self._kept.values())
        for known in (*(_read(read_manifest, path.parent) for path in made), *kept):
            if known is not None:
                return known.vocab_size, ()
        if stated.source == "train":
            return stated.vocabulary_size, ()
        if stated.source == "file" and (lines := _lines_of(self._project / stated.path)):
            return lines, ()
        return BERT_VOCABULARY, (f"a vocabulary of {BERT_VOCABULARY:,}, BERT's",)

    def _find(self, folder: Path, stage: str) -> Manifest | None:
        """The manifest that a folder has, or will have as a cache does; its files are elsewhere then."""
        there = None if stage in self._remade else _read(read_manifest, self._root / folder)
        kept = self._kept.get((folder / MANIFEST).as_posix())
        return there if there is not None or kept is None else _read(read_manifest_alone, kept)

    def _find_held_out(self, rows: Path, stage: str) -> Folders:
        known = self._find(rows / HELD_OUT, stage)
        return {} if known is None else {rows / HELD_OUT: Rows(known)}

    def _phase(self, phase: str) -> Folders:
        folder, stage = artifacts.rows_folder(phase), f"pretrain_rows@{phase}"
        if (known := self._find(folder, stage)) is not None:
            return {folder: Rows(known), **self._find_held_out(folder, stage)}
        section = packed(self._params.pretrain_rows, self._params.packing)
        rows = getattr(section, phase)
        length, of = rows.row_length, "as of Wikipedia"
        factor = text_packing_factor(length)
        if self._params.corpus.source == "demo":
            factor, of = max(1.0, FILL * length / DEMO_TOKENS), "as of the demo's text"
        fill = 1 / factor
        words: tuple[str, ...] = ()
        if section.max_sequences_per_row == 1:
            factor = 1.0
        else:
            factor, fill = min(factor, float(section.max_sequences_per_row)), FILL
            words = (f"{factor:.3g} sequences in a row of {length} tokens, {of}",)
        manifest = Manifest(
            kind="pretrain",
            row_length=length,
            max_sequences=section.max_sequences_per_row,
            max_predictions=rows.max_predictions_per_row or default_max_predictions(length, section.masked_fraction),
            vocab_size=self.vocabulary,
            tokenizer_sha256="",
            seed=section.seed,
            rows=TEXT_ROWS,
            sequences=round(TEXT_ROWS * factor),
            real_tokens=round(TEXT_ROWS * length * fill),
            files={},
        )
        words = (*self._vocabulary_assumed, *words, f"{fill:.0%} of the tokens of a row are no padding")
        return {folder: Rows(manifest, words), **_hold_out(folder, manifest, words, section.held_out_fraction)}

    def _entry(self, task: DownstreamTask) -> Folders:
        train, stage = task.rows_folder(TRAIN), task.entry.stage("rows")
        splits = [task.rows_folder(split) for split in task.splits]
        known = {folder: manifest for folder in splits if (manifest := self._find(folder, stage)) is not None}
        if len(known) == len(splits):
            return {
                **{folder: Rows(manifest) for folder, manifest in known.items()},
                **self._find_held_out(train, stage),
            }
        examples, dev, assumed = self._examples(task)
        of_train, words = self._downstream_rows(task, examples)
        words = (*self._vocabulary_assumed, *assumed, *words)
        fraction = task.entry.rows.held_out_fraction
        ratios = {folder: dev / len(task.development) / examples for folder in splits} | {train: 1 - fraction}
        found = {folder: Rows(share(of_train, ratio), words) for folder, ratio in ratios.items()}
        return {**found, **_hold_out(train, of_train, words, fraction)}

    def _examples(self, task: DownstreamTask) -> tuple[int, int, tuple[str, ...]]:
        """Training examples, development examples, and what of that is assumed."""
        entry = task.entry.params
        expected, data, words = entry.expected, entry.data, []
        train, dev = expected.train, expected.dev
        if train is None and (size := self._given_bytes(task)):
            train = max(1, size // expected.file_bytes)
            words.append(f"{train:,} examples, going by the {size / 1e6:,.1f} MB of the file")
        if train is None:
            train = NAMELESS
            words.append(f"{train:,} examples, as nobody says how many there are")
        if dev is None:
            dev = max(1, round(train * SHARE_OF_DEV))
        limits = (getattr(data, "limit_train", None), getattr(data, "limit_dev", None))
        train, dev = (min(number, limit or number) for number, limit in zip((train, dev), limits, strict=True))
        return train, dev, tuple(words)

    def _given_bytes(self, task: DownstreamTask) -> int:
        """Bytes of the training file of an entry that reads one; 0 where it is not here, or reads none."""
        data = task.entry.params.data
        name = getattr(data, "train_path", None)
        path = self._project / name if name and getattr(data, "source", "") == "files" else None
        return path.stat().st_size if path is not None and path.is_file() else 0

    def _downstream_rows(self, task: DownstreamTask, examples: int) -> tuple[Manifest, tuple[str, ...]]:
        """The rows of so many examples of an entry, and what is assumed of them."""
        rows, tokens = task.entry.rows, task.entry.params.expected.tokens
        windows = max(1, math.ceil(tokens / rows.row_length))
        each = min(tokens, rows.row_length)
        factor = 1.0
        if rows.max_sequences_per_row > 1:
            factor = max(1.0, min(float(rows.max_sequences_per_row), FILL * rows.row_length / each))
        sequences = examples * windows
        manifest = Manifest(
            kind=task.row_kind,
            row_length=rows.row_length,
            max_sequences=rows.max_sequences_per_row,
            max_predictions=0,
            vocab_size=self.vocabulary,
            tokenizer_sha256="",
            seed=0,
            rows=max(1, round(sequences / factor)),
            sequences=sequences,
            real_tokens=sequences * each,
            files={},
            num_labels=len(task.labels) or LABELS,
        )
        packing = [f"{factor:.2g} of them in a row"] if factor > 1 else []
        return manifest, (f"{each} tokens a sequence", *packing)


def _read(read: Callable[[Path], Manifest], path: Path) -> Manifest | None:
    try:
        return read(path)
    except InputError:
        return None


def _hold_out(folder: Path, manifest: Manifest, words: tuple[str, ...], fraction: float) -> Folders:
    """The rows that are held out of these."""
    return {folder / HELD_OUT: Rows(share(manifest, fraction), words)} if fraction else {}


def text_packing_factor(row_length: int) -> float:
    """Sequences of a packed row of pre-training, between the figures of PACKING_FACTORS on straight lines."""
    lengths, factors = np.transpose(PACKING_FACTORS)
    return float(np.interp(row_length, lengths, factors))


def share(manifest: Manifest, ratio: float) -> Manifest:
    """A part of these rows, at least one of them."""
    counts = {name: max(1, round(getattr(manifest, name) * ratio)) for name in ("rows", "sequences", "real_tokens")}
    return dataclasses.replace(manifest, **counts)


def _lines_of(path: Path) -> int:
    """Entries of a vocab.txt, or of that in a folder; 0 where there is none."""
    file = path / "vocab.txt" if path.is_dir() else path
    if file.suffix != ".txt" or not file.is_file():
        return 0
    return sum(bool(line.strip()) for line in file.read_bytes().splitlines())


def write_manifests(folders: Folders, checkout: Path) -> None:
    """Make a checkout that holds these manifests alone."""
    for folder, rows in folders.items():
        (checkout / folder).mkdir(parents=True, exist_ok=True)
        alone = dataclasses.replace(rows.manifest, files={})
        (checkout / folder / MANIFEST).write_text(alone.to_json(), encoding="utf-8")


@dataclass(frozen=True)
class PlannedJob:
    """A device job that a stage will start."""

    stage: str
    split: str
    """The rows that it predicts, where it does; empty of a training."""
    job: Job
    """From fresh weights, as none are there yet; its rows are a folder relative to the checkout."""
    rows: Rows

    @property
    def name(self) -> str:
        """The stage, and the split where that has several."""
        return f"{self.stage} {self.split}".strip()


def planned_jobs(
    params: Params,
    project: Path,
    root: Path,
    stages: Sequence[str],
    remade: Collection[str] = (),
    manifests: Mapping[str, Path] | None = None,
) -> list[PlannedJob]:
    """The jobs of these stages, in their order.

    Args:
        params: of the run.
        project: what paths of the parameters count from.
        root: the checkout, which need not be there.
        stages: of the plan; those that start no device job of their own are passed over.
        remade: stages whose outs in the checkout are not those that the run will have.
        manifests: those that the checkout will have and has not yet -> where they are.

    Raises:
        InputError: a file that a job is built from cannot be used.
    """
    if not any(stage.partition("@")[0] in (PRETRAIN, FINETUNE, PREDICT) for stage in stages):
        return []
    folders = RowEstimator(params, project, root, remade, manifests or {}).all()
    # What relative paths of the parameters count from is not where the manifests lie.
    config = str((project / params.ipu.config).absolute()) if params.ipu.config else ""
    stated = params.model_copy(update={"ipu": params.ipu.model_copy(update={"config": config})})
    with tempfile.TemporaryDirectory(prefix="podium-plan-") as name:
        place = Path(name)
        write_manifests(folders, place)
        return [found for stage in stages for found in _jobs_of(stage, stated, folders, place)]


def _jobs_of(stage: str, params: Params, folders: Folders, place: Path) -> Iterator[PlannedJob]:
    group, _, item = stage.partition("@")
    if group == PRETRAIN:
        yield _planned(stage, "", make_pretrain_job(item, params, place, untrained=True), folders, place)
    elif group == FINETUNE:
        job = finetune_job(load_spec(entry_of(params, item)), params, place, untrained=True)
        yield _planned(stage, "", job, folders, place)
    elif group == PREDICT:
        task = load_spec(entry_of(params, item))
        for split in task.predicted:
            job = predict_job(task, params, task.rows_folder(split, place), place, place, place, untrained=True)
            yield _planned(stage, split if len(task.predicted) > 1 else "", job, folders, place)


def _planned(stage: str, split: str, job: Job, folders: Folders, place: Path) -> PlannedJob:
    rows = Path(job.rows).relative_to(place)
    return PlannedJob(stage, split, dataclasses.replace(job, rows=str(rows)), folders[rows])
