"""Entries of downstream work: what a run fine-tunes for, each with a name, a kind and sections of its own.

No stage depends on this file: it reads parameters, each of which its stages state.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from ipu_model.strict import nearest
from tasks.params.downstream import PUBLISHED, EntryParams, RowsParams
from tasks.params.schema import PHASES, Params, load_sections, packed
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

BASE = "base"
ENTRY_SECTIONS = ("downstream", "packing", "pretrain", "base_model")
"""Sections of params.yaml that decide an entry: its own, how rows are packed, and what it may start from."""


@dataclass(frozen=True)
class Entry:
    """One thing to fine-tune for."""

    name: str
    """Names its files and stages, see tasks.stage.artifacts."""
    params: EntryParams
    rows: RowsParams
    """As `packing` has them."""
    start: str
    """What its training starts from: base, phase1, phase2, or empty for fresh weights."""

    @property
    def kind(self) -> str:
        """What is learnt (docs/downstream.md)."""
        return self.params.kind

    def key(self, section: str, name: str = "") -> str:
        """A section of this entry, or a parameter in it, as params.yaml calls it.

        Args:
            section: data, rows, finetune, evaluate, parity, gate, publish or ipu.
            name: of the parameter.
        """
        words = ("downstream", self.name, section, name)
        return ".".join(word for word in words if word)

    def stage(self, what: str) -> str:
        """The stage of dvc.yaml that does this for it: examples, validate_examples, rows, and so on."""
        return f"{what}@{self.name}"

    @property
    def fetches_released(self) -> bool:
        """Whether the released model is fetched from where this entry publishes to."""
        return self.params.gate.released == PUBLISHED

    @property
    def released(self) -> Path:
        """The folder in which the gate looks for scores of the released model."""
        return artifacts.released_scores(self.name) if self.fetches_released else Path(self.params.gate.released)

    @property
    def seeds(self) -> Path | None:
        """The folder with the scores of other seeds, where the gate is told of one."""
        return None if self.params.gate.seeds is None else Path(self.params.gate.seeds)

    def verdict(self, what: str = "") -> str:
        """The name of the data verdict on its examples, or on its `rows`."""
        return f"{self.name}-{what}" if what else self.name


def entries(params: Params) -> list[Entry]:
    """All that the parameters ask for, in their order."""
    return [
        Entry(name, one, packed(one.rows, params.packing), _start(one, params))
        for name, one in params.downstream.items()
    ]


def entry_of(params: Params, name: str) -> Entry:
    """The entry of that name.

    Args:
        name: or what a stage is called in dvc.yaml: a name after an @.

    Raises:
        ParamsError: there is none; the nearest one is named.
    """
    name = name.rpartition("@")[2]
    found = {entry.name: entry for entry in entries(params)}
    if name not in found:
        raise ParamsError(f"{name!r} is nothing that params.yaml fine-tunes for{nearest(name, list(found))}")
    return found[name]


def load_entry(name: str) -> Entry:
    """Return the entry of that name in params.yaml, of which only what decides an entry is looked at.

    Raises:
        ParamsError: there is none, or it cannot be used.
    """
    return entry_of(load_sections(*ENTRY_SECTIONS), name)


def entry_argument(description: str) -> str:
    """Return the one argument of a stage's command line: an entry's name, or what a stage is called.

    Args:
        description: of the stage, for --help.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name", help="the entry, or what its stage is called")
    name: str = parser.parse_args().name
    return name


def only_entry(params: Params, kind: str = "") -> Entry:
    """The one entry that there is, or the only one of a kind, for whoever names none.

    Raises:
        ParamsError: there is none, or there are several to choose from.
    """
    found = [entry for entry in entries(params) if kind in ("", entry.kind)]
    if len(found) == 1:
        return found[0]
    of_kind = f" of kind {kind}" if kind else ""
    said = ", ".join(entry.name for entry in found) or "none"
    raise ParamsError(f"params.yaml has {len(found)} entries{of_kind} of downstream ({said}): name the one you mean")


def _start(entry: EntryParams, params: Params) -> str:
    if entry.start != "auto":
        return entry.start
    if params.pretrain.enabled:
        return PHASES[-1]
    return BASE if params.base_model.source != "none" else ""


def start_model(entry: Entry) -> Path | None:
    """The folder of the weights that fine-tuning starts from; None: fresh weights."""
    return artifacts.MODELS / entry.start if entry.start else None


@dataclass(frozen=True)
class Behind:
    """What was made before an entry's own data and training, and has a part in its release."""

    phases: tuple[str, ...]
    base_model: bool
    corpus: bool


def behind(entry: Entry, params: Params) -> Behind:
    """What an entry rests on."""
    phases = PHASES[: PHASES.index(entry.start) + 1] if entry.start in PHASES else ()
    given = params.base_model.source != "none" and bool(entry.start)
    return Behind(phases, given, needs_corpus(params, phases))


def learns_text(entry: Entry, params: Params) -> bool:
    """Whether the model of an entry is pre-trained on the corpus."""
    return bool(behind(entry, params).phases) and params.pretrain_rows.source == "corpus"


def needs_corpus(params: Params, phases: tuple[str, ...]) -> bool:
    """Whether a vocabulary or these phases are made of the corpus."""
    return params.tokenizer.source == "train" or (bool(phases) and params.pretrain_rows.source == "corpus")
