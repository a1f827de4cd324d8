"""The section `downstream` of params.yaml: entries, each with a name, a kind and its own sections.

The sections of a kind and their defaults are classes in params.py of a package in tasks/downstream.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from ipu_model.core.strict import nearest
from tasks.params.sections import (
    DEFAULT_PHASES,
    RESERVED,
    Distinct,
    FinetuneParams,
    HeldOut,
    HubName,
    Name,
    PhaseName,
    Positive,
    RowLength,
    RuntimeSpec,
    Section,
    Seed,
    Separator,
    get_default,
    is_left_out,
    left_out_as,
)

ENTRY_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
ENDINGS = ("-rows", "-finetune", "-predict", "-export", "-gate", "-released")
"""Suffixes of the files that belong to an entry."""
PUBLISHED: Literal["published"] = "published"
"""Value of `gate.released` that means: what publishing replaces, the champion or newest release of the target."""
UNCOMPARED = "none"
"""Value of `gate.released` that means: no released model, so that publishing replaces whatever is there."""
Points = Annotated[float, Field(ge=0, le=100)]
MissingTexts = Annotated[Literal["refuse", "drop", "keep"], left_out_as("refuse")]


@dataclass(frozen=True)
class ExpectedExamples:
    """Expected size of a kind's examples before they are read, for estimates."""

    train: int | None = None
    """Number of training examples; None if unknown."""
    dev: int | None = None
    """Number of examples in all development sets together; None if unknown."""
    tokens: int = 64
    """Average number of tokens per example, special tokens included."""
    file_bytes: int = 200
    """Average number of bytes per example in a file."""


class DataParams(Section):
    """Source of the examples."""

    min_examples: Positive = 10
    """Minimum number of examples per split; smaller splits are rejected."""
    seed: Seed = 0
    """Random seed for samples and for the split into training and development examples."""
    limit_train: Positive | None = None
    """Use a random sample of N training examples; null: all."""
    limit_dev: Positive | None = None
    """Use a random sample of N development examples; null: all."""
    max_common_share: Annotated[float, Field(ge=0, le=1), left_out_as(0.9)] = 0.9
    """Maximum share of both the training and the development examples that are in the other set, without case, blanks
    and punctuation; above it, they are one file. Not for questions, of which none may be in both."""
    separator: Separator | None = None
    """Field separator of .csv and .tsv files: comma, semicolon, tab, pipe or a character; null: detect it."""
    quoting: Annotated[Literal["enclosing", "literal"] | None, left_out_as(None)] = None
    """Quotes at the ends of cells in .csv and .tsv files: enclosing (not part of the text) or literal; null: enclosing
    in .csv, by the content in .tsv."""
    control_characters: Annotated[Literal["refuse", "keep"], left_out_as("refuse")] = "refuse"
    """Texts with C1 control characters (U+0080 to U+009F), which a conversion with the wrong encoding leaves: refuse or
    keep."""


def require_dataset(data: Any) -> Any:
    """Reject `source: hub` without a dataset name."""
    if data.source == "hub" and not data.dataset:
        raise ValueError("source: hub needs dataset: user/name")
    return data


class OwnDataParams(DataParams):
    """Your own examples: one file per split, or a Hub dataset."""

    source: str
    """files: read train_path and dev_path, the format follows the file extension; hub: a Hub dataset (docs/inputs.md).
    """
    train_path: Name
    """File or folder of training examples, for source: files."""
    dev_path: Name | None
    """File or folder of development examples; null: split off dev_fraction of the training examples."""
    dev_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    """Share of training examples to split off for development if dev_path is null; related examples stay together."""
    dataset: str | None = None
    """Hub dataset name, for source: hub."""
    dataset_config: str | None = None
    """Configuration of the dataset; null: its only one."""
    dataset_revision: str | None = None
    """Commit, branch or tag of the dataset; set a commit to make runs reproducible."""

    def path_of(self, split: str) -> Path:
        """Return the file or folder of a split, for source: files."""
        return Path(self.train_path if split == "train" else str(self.dev_path))

    @property
    def dev_is_apart(self) -> bool:
        """True if the development examples are split off from the training examples."""
        return self.dev_path is None and self.source in ("files", "hub")

    _the_hub_needs_a_name = model_validator(mode="after")(require_dataset)


class LabelledDataParams(OwnDataParams):
    """Your own examples with names of classes or types."""

    similar_labels: Annotated[Literal["refuse", "fold", "keep"], left_out_as("refuse")] = "refuse"
    """Labels that are spellings of one name, by case, blanks, normal form, a stop at the end or yes for true: refuse,
    fold into the most frequent, or keep."""


class RowsParams(Section):
    """Row settings that every kind of task shares."""

    row_length: RowLength
    """Tokens per row."""
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)]
    """Maximum number of sequences packed into a row."""
    held_out_fraction: HeldOut = 0.0
    """Share of training examples held out from training for finetune.evaluate_every_updates; 0: none."""


class EvaluateParams(Section):
    """Evaluation settings of a kind."""


def _require_place(text: str) -> str:
    RuntimeSpec.parse(text)
    return text


class ParityParams(Section):
    """Recomputation of the model on other devices or precisions, to compare with the stage predict."""

    against: Annotated[list[Annotated[str, AfterValidator(_require_place)]], Distinct] = []
    """Runtimes and precisions to recompute the model in, RUNTIME[:PRECISION] each, such as ["cpu:bf16"]; empty: no
    parity stage."""
    max_logit_difference: Annotated[float, Field(gt=0)] | None = None
    """Maximum absolute difference of logits; a larger one fails the stage. null: no limit."""


class ExportParams(Section):
    """Formats of the model for production, scored as shipped (docs/production.md)."""

    formats: Annotated[list[Literal["onnx", "int8"]], Distinct] = []
    """onnx: ONNX in fp32; int8: ONNX with weights in 8 bits; empty: none."""


class DistillParams(Section):
    """Training as the student of a finished model, possibly with fewer layers (docs/finetune.md)."""

    teacher: Name | None = None
    """Folder of the teacher: a release, or models/NAME of a run; null: none, or repository."""
    repository: HubName | None = None
    """Teacher on the Hub, user/name, instead of a folder."""
    revision: str | None = None
    """Commit, branch or tag of the teacher; set a commit to make runs reproducible."""
    name: Name | None = None
    """Name of the teacher on the model card; null: repository, or only its hash."""
    layers: Positive | None = None
    """Layers of the student, copied evenly from those of the model that it starts from; null: all of them."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 2.0
    """Divisor of both models' logits before the softmax: larger values also teach how the wrong answers compare."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the teacher in the loss; the rest is the loss of the labels."""

    @property
    def has_teacher(self) -> bool:
        """True if there is a teacher."""
        return bool(self.teacher or self.repository)

    @model_validator(mode="after")
    def _check_one_teacher(self) -> DistillParams:
        if self.teacher and self.repository:
            raise ValueError("distill.teacher excludes distill.repository. Set one of them to null")
        return self


class ReleaseParams(Section):
    """Gate settings that every kind shares."""

    released: Literal["published", "none"] | Name = PUBLISHED
    """Model that a candidate must not fall behind. published: what publishing replaces, the champion or newest release
    of the target; none: no model; otherwise a folder with scores.json of a model."""
    seeds: Name | None = None
    """Folder with seed-<N>.json, the scores of this recipe with other seeds: evaluate the recipe as well; null: none.
    """
    above_baseline: bool = True
    """Require the main score to be significantly above the best baseline that needs no model."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Confidence level of the significance tests: paired bootstrap and McNemar."""
    max_export_drop: Annotated[dict[Literal["onnx", "int8"], Points] | None, left_out_as(None)] = None
    """Tolerated drop in points of an exported format against the model, by format; null: onnx 0, int8 1."""
    max_teacher_drop: Annotated[Points | None, left_out_as(None)] = None
    """Largest drop against the teacher of section distill, in points, that must be ruled out; null: not compared."""


class EntryPublishParams(Section):
    """Publish target of an entry; the section `publish` sets how to publish."""

    folder: Name
    """Folder of the release, for publish.target: local."""
    repository: HubName | None = None
    """Repository user/name, for publish.target: hub."""
    data_name: Name | None = None
    """Name of your examples on the model card; null: "own" examples and their hash."""


class EntryIpuParams(Section):
    """ipu_config.json keys for the jobs of an entry."""

    finetune: dict[str, Any] | None = None
    """ipu_config.json keys for training; they override ipu.config."""
    predict: dict[str, Any] | None = None
    """ipu_config.json keys for prediction; they override ipu.config."""


class EntryParams(Section):
    """An entry: one task to fine-tune for."""

    about: ClassVar[str]
    """Description of the kind for the command line."""
    record: ClassVar[str] = "example"
    """Name of one example in messages."""
    head: ClassVar[str]
    """Head of the model, one of ipu_model's."""
    has_labels: ClassVar[bool] = False
    """True if the model has classes, or the name of a value; those that `labels` lacks are in the training rows."""
    label_table: ClassVar[str] = ""
    """Module of the package with labels that training writes, if any."""
    reads_words: ClassVar[bool] = False
    """True if a text is a list of words, each of which is encoded with a blank before it."""

    runs_on_ipus: ClassVar[bool] = True
    """True if IPUs can train its model."""
    needs_own_family: ClassVar[bool] = False
    """True if only encoders that Podium trains itself can learn it."""
    compares_start: ClassVar[bool] = False
    """True if the model before training answers the development sets as well, as a baseline."""

    kind: str
    """Kind of task, which decides the entry's sections and defaults (docs/downstream.md)."""
    start: PhaseName = "auto"
    """Weights to start from: base (base_model), a phase of pre-training such as phase1, or auto: the last phase if
    pre-training is enabled, otherwise base_model, otherwise random weights."""
    against: Annotated[Name | None, left_out_as(None)] = None
    """Entry to compare with on the same examples, such as the same fine-tuning with another start. That entry has no
    gate and is never published. null: none."""
    data: DataParams
    """Source of the examples."""
    rows: RowsParams
    """Conversion of examples into rows."""
    finetune: FinetuneParams
    """Training settings."""
    evaluate: EvaluateParams = EvaluateParams()
    """Conversion of logits into answers, for kinds with a choice."""
    parity: ParityParams = ParityParams()
    """Recomputation of the model elsewhere, to compare with the stage predict (docs/evaluation.md)."""
    export: Annotated[ExportParams, left_out_as(ExportParams())] = ExportParams()
    """Formats of the model for production, scored as shipped (docs/production.md)."""
    distill: Annotated[DistillParams, left_out_as(DistillParams())] = DistillParams()
    """Training as the student of a finished model, possibly with fewer layers (docs/finetune.md)."""
    gate: ReleaseParams
    """Requirements that a model must meet to be published."""
    publish: EntryPublishParams
    """Publish target; the section `publish` sets how to publish."""
    ipu: EntryIpuParams = EntryIpuParams()
    """ipu_config.json keys for the entry's jobs; they override ipu.config."""

    @model_validator(mode="after")
    def _check_held_out_rows(self) -> EntryParams:
        if self.finetune.evaluate_every_updates is not None and not self.rows.held_out_fraction:
            raise ValueError(
                f"finetune.evaluate_every_updates={self.finetune.evaluate_every_updates} needs held-out examples: "
                "set rows.held_out_fraction, for example to 0.05"
            )
        return self

    @model_validator(mode="after")
    def _check_teacher_drop(self) -> EntryParams:
        if self.gate.max_teacher_drop is not None and not self.distill.has_teacher:
            raise ValueError("gate.max_teacher_drop needs a teacher: set distill.teacher, or the drop to null")
        return self

    @property
    def title(self) -> str:
        """Name of the task for users."""
        raise NotImplementedError

    @property
    def row_kind(self) -> str:
        """Kind of the rows, one of ipu_model's."""
        return self.head

    @property
    def head_settings(self) -> dict[str, Any]:
        """Settings of the head (Job.head_settings)."""
        return {}

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names by number, if the parameters define them; one name for a value."""
        return ()

    @property
    def development(self) -> tuple[str, ...]:
        """Names of the development sets."""
        return ("dev",)

    @property
    def decides_on_held_out(self) -> bool:
        """True if held-out examples are predicted as well, because they decide a threshold."""
        return False

    @property
    def decision_files(self) -> tuple[str, ...]:
        """Files of the evaluation from which the gate decides the predictions again."""
        return ()

    @property
    def released_below(self) -> str:
        """Subfolder of a released model's scores in the folder set by the gate's parameters."""
        return ""

    @property
    def reads_pairs(self) -> bool:
        """True if the parameters alone say that examples are pairs of texts."""
        return False

    @property
    def expected(self) -> ExpectedExamples:
        """Expected number and size of examples."""
        return ExpectedExamples()

    @classmethod
    def package(cls) -> str:
        """Return the package of tasks/downstream that implements entries of this class."""
        return cls.__module__.rpartition(".")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Settings that only this kind has, such as the name of a task."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in EntryParams.model_fields}

    @property
    def option_names(self) -> tuple[str, ...]:
        """Parameters of the entry that set its options."""
        return tuple(self.options)


@cache
def _kinds() -> dict[str, type[EntryParams]]:
    """Return kind -> class of its entries. The kinds import parameters, so that these import them when needed."""
    return {name: kind.params for name, kind in importlib.import_module("tasks.downstream.kind").KINDS.items()}


def kind_names() -> list[str]:
    """Return the names of all kinds."""
    return sorted(_kinds())


def kind_params(kind: object) -> type[EntryParams]:
    """Return the class of an entry of this kind.

    Raises:
        ValueError: the kind is unknown; the message suggests the nearest one.
    """
    if not isinstance(kind, str) or kind not in _kinds():
        raise ValueError(f"kind={kind!r} is not known{nearest(str(kind), kind_names())}")
    return _kinds()[kind]


def data_params(kind: str) -> Any:
    """Return the class of section `data` of an entry of this kind."""
    return kind_params(kind).model_fields["data"].annotation


def _as_its_kind(value: object) -> object:
    return kind_params(value.get("kind")).model_validate(value) if isinstance(value, Mapping) else value


def _entry_name(name: str) -> str:
    if not ENTRY_NAME.fullmatch(name):
        raise ValueError(f"name {name!r} must consist of lowercase letters, digits, '-' and '_', at most 64")
    taken = name in (*RESERVED, *DEFAULT_PHASES)
    if taken or name.startswith("pretrain-") or name.endswith(ENDINGS) or "-parity-" in name:
        raise ValueError(f"name {name!r} is reserved for other files of a run: choose another")
    return name


Entries = dict[
    Annotated[str, AfterValidator(_entry_name)], Annotated[SerializeAsAny[EntryParams], BeforeValidator(_as_its_kind)]
]


def defaults_of(kind: str, name: str) -> dict[str, Any]:
    """Return the values of a new entry as params.yaml states them, None for parameters without a default.

    Raises:
        ValueError: the kind is unknown.
    """
    fields = kind_params(kind).get_fields()
    values = {key: get_default(field) for key, field in fields.items() if not is_left_out(field)}
    values["kind"] = kind
    values["publish"]["folder"] = f"published/{name}"
    return values
