"""The section `downstream` of params.yaml: entries, each with a name, a kind, and sections of its own.

What the sections of a kind hold, and their defaults, is a class of params.py in a folder of tasks/downstream, which
`KINDS` there names.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from ipu_model.strict import nearest
from tasks.params.sections import (
    FinetuneParams,
    HeldOut,
    HubName,
    Name,
    Place,
    Positive,
    RowLength,
    Section,
    Seed,
    Separator,
    get_default,
)

ENTRY_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RESERVED = ("base", "corpus", "phase1", "phase2", "publish", "tokenizer")
"""Names of what lies beside the files of entries."""
ENDINGS = ("-rows", "-finetune", "-predict", "-gate", "-released")
"""Of files that belong to an entry."""
PUBLISHED = "published"
"""In place of a folder: what was released last where this entry publishes to."""
Points = Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True)
class Expected:
    """What a kind expects of its examples before they are read, for an estimate."""

    train: int | None = None
    """Training examples; None where nobody says."""
    dev: int | None = None
    """The same, of all development sets together."""
    tokens: int = 64
    """Of an example, special ones included, on average."""
    file_bytes: int = 200
    """That an example takes in a file."""


class DataParams(Section):
    """Where the examples come from."""

    min_examples: Positive = 10
    """Of each split; fewer are refused."""
    seed: Seed = 0
    """Of what is chosen: samples, and development examples that are set apart."""
    limit_train: Positive | None = None
    """A sample of so many training examples; null: all."""
    limit_dev: Positive | None = None
    """A sample of so many development examples; null: all."""
    separator: Separator | None = None
    """What separates the fields of .csv and .tsv files (comma, semicolon, tab, pipe, or a sign); null: it is found."""


def require_dataset(data: Any) -> Any:
    """Refuse `source: hub` without the name of a data set."""
    if data.source == "hub" and not data.dataset:
        raise ValueError("source: hub needs dataset: user/name")
    return data


class OwnDataParams(DataParams):
    """Examples of somebody's own: a file of each split, or a data set of the Hub."""

    source: str
    """files, by the endings of their names, or hub (docs/inputs.md)."""
    train_path: Name
    """File or folder of the training examples, for source: files."""
    dev_path: Name | None
    """File or folder of the development examples; null: dev_fraction of the training examples is set apart."""
    dev_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    """Share of the training examples that is set apart where dev_path is null; what belongs together stays together."""
    dataset: str | None = None
    """Name of a Hub data set, for source: hub."""
    dataset_config: str | None = None
    """Configuration of that data set; null: its only one."""
    dataset_revision: str | None = None
    """Commit, branch or tag of that data set; a commit makes the run reproducible."""

    def path_of(self, split: str) -> Path:
        """The file or folder of a split, for source: files."""
        return Path(self.train_path if split == "train" else str(self.dev_path))

    @property
    def dev_is_apart(self) -> bool:
        """Whether the development examples are a part of those of training."""
        return self.dev_path is None and self.source in ("files", "hub")

    _the_hub_needs_a_name = model_validator(mode="after")(require_dataset)


class RowsParams(Section):
    """Rows of any kind of task."""

    row_length: RowLength
    """Tokens in a row."""
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)]
    """Sequences that share a row at most."""
    held_out_fraction: HeldOut = 0.0
    """Share of the training examples that training does not see, for finetune.evaluate_every_updates; 0: none."""


class EvaluateParams(Section):
    """What a kind may be told of its evaluation."""


class ParityParams(Section):
    """Where the model is computed once more, to be compared with the stage predict."""

    against: list[str] = Field(default_factory=list)
    """Places, RUNTIME[:PRECISION] each, for example ["cpu:bf16"]; empty: no such stage."""
    max_logit_difference: Annotated[float, Field(gt=0)] | None = None
    """A larger difference fails the stage; null: any will do."""

    @model_validator(mode="after")
    def _places_are_known(self) -> ParityParams:
        for text in self.against:
            Place.of(text)
        if len(set(self.against)) < len(self.against):
            raise ValueError(f"against names a place twice: {', '.join(self.against)}")
        return self


class ReleaseParams(Section):
    """What every gate knows."""

    released: Literal["published"] | Name = "inputs/released"
    """Folder with scores.json of the released model, which a candidate must not fall behind; published: it is
    fetched."""
    seeds: Name | None = None
    """Folder with seed-<N>.json of this recipe with other seeds: the recipe is judged, too; null: none."""
    above_baseline: bool = True
    """The leading score must lie significantly above that of the best answer that needs no model."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Of the tests that call a drop significant: paired bootstrap and McNemar's."""


class EntryPublishParams(Section):
    """Where the release of an entry goes; the section `publish` says how."""

    folder: Name
    """Where the release goes, for publish.target: local."""
    repository: HubName | None = None
    """user/name, for publish.target: hub."""
    data_name: Name | None = None
    """What the card calls your examples; null: that they are your own, and their hash."""


class EntryIpuParams(Section):
    """Keys of an ipu_config.json for the jobs of an entry."""

    finetune: dict[str, Any] | None = None
    """Keys of an ipu_config.json for the training, laid over ipu.config."""
    predict: dict[str, Any] | None = None
    """Keys of an ipu_config.json for the predictions, laid over ipu.config."""


class EntryParams(Section):
    """One thing to fine-tune for."""

    about: ClassVar[str]
    """The kind in words, for the command line."""

    kind: str
    """What is learnt; it decides which sections and defaults the entry has (docs/downstream.md)."""
    start: Literal["auto", "base", "phase1", "phase2"] = "auto"
    """Weights to start from: base (base_model), phase1, phase2, or auto: the furthest there is; fresh ones where
    none is."""
    data: DataParams
    """Where the examples come from."""
    rows: RowsParams
    """How examples are made into rows."""
    finetune: FinetuneParams
    """The training."""
    evaluate: EvaluateParams = EvaluateParams()
    """How answers are made of logits, where a kind has a choice."""
    parity: ParityParams = ParityParams()
    """The model computed once more elsewhere, and compared with the stage predict (docs/evaluation.md)."""
    gate: ReleaseParams
    """What a model must reach to be published."""
    publish: EntryPublishParams
    """Where the release goes; the section `publish` says how."""
    ipu: EntryIpuParams = EntryIpuParams()
    """Keys of an ipu_config.json for the jobs of the entry, laid over ipu.config."""

    @model_validator(mode="after")
    def _what_is_evaluated_was_held_out(self) -> EntryParams:
        if self.finetune.evaluate_every_updates is not None and not self.rows.held_out_fraction:
            raise ValueError(
                f"finetune.evaluate_every_updates={self.finetune.evaluate_every_updates} needs examples that training "
                "does not see: set rows.held_out_fraction, for example to 0.05"
            )
        return self

    @classmethod
    def recipe_for(cls, train: Path) -> dict[str, Any]:
        """What BERT takes for this training file where that differs from the defaults: dotted name -> value.

        Args:
            train: a file or folder that is there.
        """
        return {}

    @property
    def expected(self) -> Expected:
        """How many examples of which size there will be."""
        return Expected()

    @classmethod
    def package(cls) -> str:
        """The package of tasks/downstream that knows entries of this class."""
        return cls.__module__.rpartition(".")[0]

    @property
    def options(self) -> dict[str, Any]:
        """What a kind asks beside the sections that all have, such as the name of a task."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in EntryParams.model_fields}


@cache
def _kinds() -> dict[str, type[EntryParams]]:
    """Return kind -> the class of its entries, as `KINDS` of each params.py in a folder of tasks/downstream says."""
    package = importlib.import_module("tasks.downstream")
    folders = [found.name for found in pkgutil.iter_modules(package.__path__, "tasks.downstream.") if found.ispkg]
    stated = [f"{name}.params" for name in folders if importlib.util.find_spec(f"{name}.params")]
    return {kind: params for name in stated for kind, params in importlib.import_module(name).KINDS.items()}


def kind_names() -> list[str]:
    """Return all kinds there are."""
    return sorted(_kinds())


def kind_params(kind: object) -> type[EntryParams]:
    """The class of an entry of that kind.

    Raises:
        ValueError: there is no such kind; the nearest one is named.
    """
    if not isinstance(kind, str) or kind not in _kinds():
        raise ValueError(f"kind={kind!r} is not known{nearest(str(kind), kind_names())}")
    return _kinds()[kind]


def _as_its_kind(value: object) -> object:
    return kind_params(value.get("kind")).model_validate(value) if isinstance(value, Mapping) else value


def _entry_name(name: str) -> str:
    if not ENTRY_NAME.fullmatch(name):
        raise ValueError(f"the name {name!r} must be of small letters, digits, '-' and '_', 64 at most")
    if name in RESERVED or name.startswith("pretrain-") or name.endswith(ENDINGS) or "-parity-" in name:
        raise ValueError(f"the name {name!r} is that of other files of a run: choose another")
    return name


Entries = dict[
    Annotated[str, AfterValidator(_entry_name)], Annotated[SerializeAsAny[EntryParams], BeforeValidator(_as_its_kind)]
]


def defaults_of(kind: str, name: str) -> dict[str, Any]:
    """The values of a new entry as params.yaml states them; what has no default is None.

    Raises:
        ValueError: there is no such kind.
    """
    values = {key: get_default(field) for key, field in kind_params(kind).get_fields().items()}
    values["kind"] = kind
    values["publish"]["folder"] = f"published/{name}"
    return values
