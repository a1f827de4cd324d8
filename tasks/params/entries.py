"""Entries of params.yaml resolved for stages: what a run fine-tunes for.

No stage depends on this file: it reads only parameters that its stages depend on.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ipu_model.core.strict import nearest
from tasks.params.downstream import PUBLISHED, UNCOMPARED, EntryParams, RowsParams
from tasks.params.schema import Params, apply_packing, load_sections
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

P = TypeVar("P", bound=EntryParams)
BASE = "base"
TRAIN = "train"
ENTRY_SECTIONS = ("downstream", "packing", "pretrain", "base_model")
"""Sections of params.yaml that determine an entry: its own, packing, and where it may start from."""


@dataclass(frozen=True)
class Entry:
    """An entry: one task to fine-tune for."""

    name: str
    """Name in its files and stages, see tasks.stage.artifacts."""
    params: EntryParams
    rows: RowsParams
    """Row parameters with `packing` applied."""
    start: str
    """Start of its training: base, a phase of pre-training, or empty for random weights."""

    @property
    def kind(self) -> str:
        """Kind of task (docs/downstream.md)."""
        return self.params.kind

    @property
    def record(self) -> str:
        """Name of one example in messages."""
        return self.params.record

    @property
    def development(self) -> tuple[str, ...]:
        """Names of the development sets."""
        return self.params.development

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the training set and the development sets."""
        return (TRAIN, *self.development)

    @property
    def predicted(self) -> tuple[str, ...]:
        """Splits that stage predict predicts: the development sets, and HELD_OUT if the kind needs it."""
        held_out = self.params.decides_on_held_out and self.rows.held_out_fraction > 0
        return (*self.development, *([artifacts.HELD_OUT] if held_out else []))

    def examples_file(self, split: str, root: Path = Path()) -> Path:
        """Return the file with the examples of a split."""
        return root / artifacts.examples_file(self.name, split)

    def rows_folder(self, split: str, root: Path = Path()) -> Path:
        """Return the folder with the rows of a split; HELD_OUT is a subfolder of the training rows."""
        if split == artifacts.HELD_OUT:
            return self.rows_folder(TRAIN, root) / split
        return root / artifacts.rows_folder(self.name, split)

    @property
    def decision_files(self) -> tuple[Path, ...]:
        """Files of the evaluation from which the gate decides the predictions again."""
        return tuple(artifacts.EVALUATION / self.name / file for file in self.params.decision_files)

    def params_as(self, kind: type[P]) -> P:
        """Return its parameters as those of a kind, which they must be."""
        assert isinstance(self.params, kind)
        return self.params

    def key(self, section: str, name: str = "") -> str:
        """Return the dotted name of a section or parameter of this entry in params.yaml."""
        words = ("downstream", self.name, section, name)
        return ".".join(word for word in words if word)

    def stage(self, what: str) -> str:
        """Return the stage in dvc.yaml for this entry: examples, rows, and so on."""
        return f"{what}@{self.name}"

    @property
    def fetches_released(self) -> bool:
        """True if the released model is fetched from this entry's publish target."""
        return self.params.gate.released == PUBLISHED

    @property
    def released(self) -> Path | None:
        """Folder in which the gate looks for scores of the released model; None: it compares with none."""
        if self.params.gate.released == UNCOMPARED:
            return None
        return artifacts.released_scores(self.name) if self.fetches_released else Path(self.params.gate.released)

    @property
    def seeds(self) -> Path | None:
        """Folder with the scores of other seeds, if the gate has one."""
        return None if self.params.gate.seeds is None else Path(self.params.gate.seeds)

    @property
    def training_rows(self) -> Path | None:
        """Training rows with the logits of its teacher; None without a teacher."""
        return artifacts.teacher_folder(self.name, "train") if self.params.distill.has_teacher else None

    def verdict(self, what: str = "") -> str:
        """Return the name of the validation verdict on its examples, or on its `rows`."""
        return f"{self.name}-{what}" if what else self.name


def entries(params: Params) -> list[Entry]:
    """Return all entries in the parameters, in order."""
    last = BASE if params.base_model.source != "none" else ""
    last = params.pretrain.list_phases()[-1] if params.pretrain.list_phases() else last
    return [
        Entry(name, entry, apply_packing(entry.rows, params.packing), last if entry.start == "auto" else entry.start)
        for name, entry in params.downstream.items()
    ]


def released_entries(params: Params) -> list[Entry]:
    """Return the entries that have a gate: all but those that others are compared with."""
    return [entry for entry in entries(params) if entry.name not in params.only_compared]


def find_entry(params: Params, name: str) -> Entry:
    """Return the entry with this name.

    Args:
        name: name of an entry, or of a stage in dvc.yaml, whose part after the @ is the entry.

    Raises:
        ParamsError: it does not exist; the message suggests the nearest one.
    """
    name = name.rpartition("@")[2]
    by_name = {entry.name: entry for entry in entries(params)}
    if name not in by_name:
        raise ParamsError(f"params.yaml has no entry {name!r} in downstream{nearest(name, list(by_name))}")
    return by_name[name]


def load_entry(name: str) -> Entry:
    """Load the entry with this name from params.yaml, validating only the sections that determine an entry.

    Raises:
        ParamsError: it does not exist, or is invalid.
    """
    return find_entry(load_sections(*ENTRY_SECTIONS), name)


def entry_argument(description: str) -> str:
    """Parse a stage's command line, whose one argument is the name of an entry or a stage."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name", help="entry, or its stage")
    return parser.parse_args().name


def only_entry(params: Params, kind: str = "") -> Entry:
    """Return the only entry, or the only one of a kind, for commands without a name.

    Raises:
        ParamsError: there is none, or more than one.
    """
    released = [entry for entry in released_entries(params) if kind in ("", entry.kind)]
    if len(released) == 1:
        return released[0]
    of_kind = f" of kind {kind}" if kind else ""
    names = ", ".join(entry.name for entry in released) or "none"
    raise ParamsError(f"params.yaml has {len(released)} entries{of_kind} in downstream ({names}): name one")


def start_model(entry: Entry) -> Path | None:
    """Return the folder of the weights that fine-tuning starts from; None: random weights."""
    return artifacts.MODELS / entry.start if entry.start else None


@dataclass(frozen=True)
class Upstream:
    """Upstream parts of a release other than the entry's own data and training."""

    phases: tuple[str, ...]
    base_model: bool
    corpus: bool


def find_upstream(entry: Entry, params: Params) -> Upstream:
    """Return the upstream parts of an entry's release."""
    known = params.pretrain.list_phases()
    phases = known[: known.index(entry.start) + 1] if entry.start in known else ()
    base_model = params.base_model.source != "none" and bool(entry.start)
    return Upstream(phases, base_model, needs_corpus(params, phases))


def learns_text(entry: Entry, params: Params) -> bool:
    """Return True if the entry's model is pre-trained on the corpus."""
    return bool(find_upstream(entry, params).phases) and params.pretrain_rows.source == "corpus"


def needs_corpus(params: Params, phases: tuple[str, ...]) -> bool:
    """Return True if the vocabulary or these phases are built from the corpus."""
    return params.tokenizer.source == "train" or (bool(phases) and params.pretrain_rows.source == "corpus")
