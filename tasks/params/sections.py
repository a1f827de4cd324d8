"""Sections of params.yaml: input data, training, devices, tracking and publishing.

The defaults are those of BERT. Row parameters follow create_pretraining_data.py of github.com/google-research/bert
where it has them. For pre-training, the batch, updates, learning rate and warm-up come from the paper (Devlin et al.
2019, appendix A.2), the rest from optimization.py and run_pretraining.py. `Params` in schema.py combines the sections.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo

from ipu_model.core.schedules import find_decay_problem, find_growth_problem

Fraction = Annotated[float, Field(ge=0, le=1)]
HeldOut = Annotated[float, Field(ge=0, le=0.5)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
SHORTEST_ROW = 16
RowLength = Annotated[int, Field(ge=SHORTEST_ROW, le=32767)]


def _named_text(pattern: str, rule: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"is {text!r}, must be {rule}")
        return text

    return AfterValidator(check)


def _written(pattern: str) -> WithJsonSchema:
    """Return the same rule as a JSON Schema pattern for editors."""
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


Text = Annotated[str, StringConstraints(min_length=1)]
LINE = r"[^\x00-\x1f\x7f]+"
Name = Annotated[str, _named_text(LINE, "one line of text, without control characters, and not empty"), _written(LINE)]
"""Name of a file, a column or a run."""
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
"""Name of a model or dataset on the Hub."""
HubName = Annotated[
    str, _named_text(HUB_NAME.pattern, "user/name, of letters, digits, '-', '_' and '.'"), _written(HUB_NAME.pattern)
]
WORD = r"[A-Za-z0-9][A-Za-z0-9.+-]*"
Word = Annotated[str, _named_text(WORD, "one word of letters, digits, '.', '+' and '-'"), _written(WORD)]
"""Name of a licence or a language."""
SEPARATOR_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
SEPARATOR = rf"{'|'.join(SEPARATOR_NAMES)}|\t|[!#$%&*+,./:;=?@^_`|~-]"
Separator = Annotated[
    str,
    _named_text(SEPARATOR, f"{', '.join(SEPARATOR_NAMES)}, or one character"),
    _written(SEPARATOR),
]
"""Character that separates the fields of a table, or its name, which stays as it is in the files that record it."""
Dropout = Annotated[float, Field(ge=0, lt=1)]
Moment = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0)]
Epochs = Annotated[float, Field(gt=0)]
Updates = Annotated[int, Field(ge=0)]
Interval = Positive | Annotated[float, Field(gt=0, lt=1)]
"""Number of updates, or their share of all updates if below 1."""
Minutes = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _require_distinct(items: list[Any]) -> list[Any]:
    if len(set(items)) < len(items):
        raise ValueError(f"contains duplicates: {', '.join(items)}")
    return items


Distinct = AfterValidator(_require_distinct)
CHECKPOINT_MINUTES = 10.0
"""Minutes of training that a failed host may lose. Young's formula, sqrt(2 x cost of a checkpoint x time between
failures) (CACM 17 (9), 1974), gives 10 minutes for a checkpoint that delays training by 2 s on a host that fails once a
day. The curve is flat around its optimum."""


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, no implicit conversion (the text "3" is not a number), no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def get_fields(cls) -> dict[str, FieldInfo]:
        """Return the section's parameters by their keys in the file."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}


RESERVED = ("base", "corpus", "publish", "tokenizer")
"""Names of files next to those of phases and entries."""
PHASE = r"[a-z][a-z0-9_]{0,63}"
PhaseName = Annotated[str, _named_text(PHASE, "lowercase letters, digits and '_', after a letter"), _written(PHASE)]


class SectionOfPhases(Section):
    """Section with a key for each pre-training phase: those of the class, and any, of type `added`, that
    `pretrain.phases` adds."""

    model_config = ConfigDict(extra="allow")
    added: ClassVar[Any]

    @property
    def added_phases(self) -> tuple[str, ...]:
        """Phases that the file adds to those of the class."""
        return tuple(self.__pydantic_extra__ or ())


def is_left_out(field: FieldInfo) -> bool:
    """Return True for a parameter that the file has only with another value than its default."""
    return field.exclude_if is not None and bool(field.exclude_if(field.get_default(call_default_factory=True)))


def get_default(field: FieldInfo) -> Any:
    """Return the default of a parameter or section as the file states it; None if it has no default."""
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Section):
        return default.model_dump(mode="json")
    inner = field.annotation
    if field.is_required() and isinstance(inner, type) and issubclass(inner, Section):
        return {key: get_default(inner_field) for key, inner_field in inner.get_fields().items()}
    return None if field.is_required() else default


def left_out_as(default: Any) -> FieldInfo:
    """Return the setting of a parameter that the file has only with another value than this default."""
    field: FieldInfo = Field(exclude_if=lambda value: value == default)
    return field


class QualityParams(Section):
    """Rules that remove documents from the corpus, all off by default (docs/inputs.md)."""

    languages: list[Word] = Field(default_factory=list)
    """Languages of documents to keep, by ISO 639 code, such as [en]; []: all."""
    min_language_probability: Fraction = 0.5
    """Probability of its language from which a document is kept, with languages."""
    min_words: Positive | None = None
    """Minimum number of words of a document; Gopher has 50. null: no minimum."""
    max_words: Positive | None = None
    """Maximum number of words of a document; Gopher has 100,000. null: no maximum."""
    stop_words: list[Text] = Field(default_factory=list)
    """Words of which a document must contain two, such as the English [the, be, to, of, and, that, have, with]; []: no
    such rule."""
    gopher_quality: bool = False
    """Remove documents by Gopher's rules for the length of words, symbols, bullets, ellipses and numbers."""
    gopher_repetition: bool = False
    """Remove documents by Gopher's rules for repeated lines and sequences of words."""
    exact_duplicates: bool = False
    """Remove documents whose text is that of an earlier one."""
    near_duplicates: Annotated[float, Field(ge=0.5, le=1)] | None = None
    """Share of common shingles from which a document is removed as a near-duplicate of an earlier one, such as 0.8;
    null: keep near-duplicates."""

    @property
    def counts_words(self) -> bool:
        """Tell whether any rule for the words of a document is on."""
        return self.gopher_quality or bool(self.min_words or self.max_words or self.stop_words)

    @property
    def removes_duplicates(self) -> bool:
        """Tell whether documents that repeat an earlier one are removed."""
        return self.exact_duplicates or self.near_duplicates is not None


class CorpusParams(Section):
    source: Literal["demo", "files", "hub", "none"] = "files"
    """demo: generated text; files: your text in `path`; hub: a Hub dataset; none: no corpus."""
    path: Name = "inputs/corpus"
    """File or folder of text (.txt, .jsonl, .json, .csv, .parquet, WikiExtractor output), for source: files."""
    text_column: Name = "text"
    """Text column of .jsonl, .csv and .parquet files and of Hub datasets."""
    title_column: Name | None = None
    """Title column; null: `title` if it exists."""
    id_column: Name | None = None
    """Column with document IDs; null: `document_id` if it exists, otherwise file name and number."""
    separator: Separator | None = None
    """Field separator of .csv files: comma, semicolon, tab, pipe or a character; null: detect it."""
    layout: Literal["auto", "wikitext", "paragraphs", "sentences", "lines", "file", "wikiextractor"] = "auto"
    """Layout of .txt files: wikitext (= Title = headings), paragraphs (a blank line starts a new document, whose lines
    are joined), sentences (the same, but a line is a sentence, as in BERT's own input), lines (a line is a document),
    file (a file is a document), wikiextractor, or auto to detect all but lines and file. In tables, auto joins
    hard-wrapped lines and lines of WikiText, paragraphs joins none, and sentences makes each line of a text a
    sentence."""
    seed: Seed = 1
    """Random seed of the generated text, for source: demo."""
    demo_documents: Positive = 20000
    """Number of generated documents of about 52 tokens; memory use does not grow with it."""
    dataset: str | None = None
    """Hub dataset name, for source: hub."""
    dataset_config: str | None = None
    """Configuration of the dataset; null: its only one."""
    dataset_split: Name = "train"
    """Split of the dataset."""
    dataset_revision: str | None = None
    """Commit, branch or tag of the dataset; set a commit to make runs reproducible."""
    quality: Annotated[QualityParams, left_out_as(QualityParams())] = QualityParams()
    """Rules that remove documents, all off by default (docs/inputs.md)."""


LEAST_BYTE_PAIRS = 300


class TokenizerParams(Section):
    source: Literal["train", "file", "hub"] = "train"
    """train: train a vocabulary on the corpus; file: a vocab.txt in `path`; hub: a Hub tokenizer."""
    kind: Annotated[Literal["wordpiece", "bpe"], left_out_as("wordpiece")] = "wordpiece"
    """Vocabulary to train, for source: train: wordpiece, as BERT's, or bpe, byte pairs as ModernBERT's, whose texts
    have no unknown tokens."""
    path: Name = "inputs/tokenizer"
    """vocab.txt, or a folder that contains one, for source: file."""
    vocabulary_size: Annotated[int, Field(ge=100, le=2**31)] = 30522
    """Maximum number of entries, for source: train; bert-base-uncased has 30,522."""
    lowercase: bool = True
    """Lowercase text."""
    strip_accents: Annotated[bool | None, left_out_as(None)] = None
    """Remove accents, vowel signs and tone marks; null: as `lowercase`, but never where a vocabulary is trained on text
    whose words have many of them, nor where a given tokenizer keeps them."""
    repository: str | None = None
    """Hub model name, for source: hub."""
    revision: str | None = None
    """Commit, branch or tag of the model; set a commit to make runs reproducible."""
    add_prefix_space: Annotated[bool | None, left_out_as(None)] = None
    """For a byte-level tokenizer: encode a text with a blank before its first word, which named entities need; null: as
    its files state."""

    @model_validator(mode="after")
    def _check_bytes_fit(self) -> Self:
        if self.kind == "bpe" and self.vocabulary_size < LEAST_BYTE_PAIRS:
            raise ValueError(
                f"vocabulary_size={self.vocabulary_size}: kind bpe needs at least {LEAST_BYTE_PAIRS}, for 256 bytes, "
                "special tokens and pairs"
            )
        if self.kind == "bpe" and self.source != "train":
            raise ValueError(f"kind bpe is trained, but source is {self.source}: leave kind out")
        return self


class BaseModelParams(Section):
    """Pretrained model to start from instead of random weights."""

    source: Literal["none", "folder", "hub"] = "none"
    """none; folder: the model in `path`; hub: a Hub model. It needs config.json and safetensors or pytorch_model.bin.
    """
    path: Name = "inputs/model"
    """Folder of the model, for source: folder."""
    repository: str | None = None
    """Hub model name, for source: hub."""
    revision: str | None = None
    """Commit, branch or tag of the model; set a commit to make runs reproducible."""


class PhaseRowsParams(Section):
    row_length: RowLength = 128
    """Tokens per row."""
    max_predictions_per_row: Positive | None = None
    """Maximum number of masked tokens per row; null: 20 for 128 tokens, 56 for 384, 76 for 512, otherwise
    masked_fraction of the row plus one."""
    duplicates: Positive = 10
    """Number of times the text is repeated, each time with a different masking."""
    path: Name = "inputs/prepared"
    """File or folder of .parquet, .arrow or .tfrecord files, for source: files."""
    dataset: str | None = None
    """Hub dataset name, for source: hub."""
    dataset_revision: str | None = None
    """Commit, branch or tag of the dataset."""


class Phase2RowsParams(PhaseRowsParams):
    row_length: RowLength = 512


class AddedRowsParams(PhaseRowsParams):
    row_length: RowLength = 0
    """Tokens per row; set it, as there is no default."""


PRETRAINING_HEADS = {"pretrain": "pretraining", "masked_lm": "masked_lm"}
"""Kind of pre-training rows (ipu_model/row_kinds) -> the head that is trained on them (ipu_model/heads)."""


class PretrainRowsParams(SectionOfPhases):
    added: ClassVar[Any] = AddedRowsParams
    __pydantic_extra__: dict[str, AddedRowsParams] = Field(init=False)
    source: Literal["corpus", "files", "hub"] = "corpus"
    """corpus: build rows from the corpus; files, hub: read sequences that are already tokenized and masked
    (docs/inputs.md)."""
    seed: Seed = 12345
    """Random seed for sentence pairs, masking and the held-out split."""
    masked_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.15
    """Share of tokens that are masked."""
    next_sentence: bool = True
    """Make sentence pairs for next-sentence prediction, as BERT; false: fill sequences with full sentences of one
    document, for masked language modelling alone, as RoBERTa."""
    short_sequence_probability: Fraction = 0.1
    """Share of sequences that are made shorter than the row allows."""
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 1
    """Maximum number of sequences packed into a row."""
    held_out_fraction: HeldOut = 0.01
    """Share of documents held out from training to evaluate pre-training; 0: none, as in published BERT."""
    phase1: PhaseRowsParams = PhaseRowsParams()
    """Rows of the first phase, short by default."""
    phase2: Phase2RowsParams = Phase2RowsParams()
    """Rows of the second phase, long by default."""

    def get_phase(self, phase: str) -> PhaseRowsParams:
        """Return the rows of a phase."""
        rows: PhaseRowsParams = getattr(self, phase, self.added())
        return rows

    @property
    def row_kind(self) -> str:
        """Kind of the rows, one of PRETRAINING_HEADS."""
        return "pretrain" if self.next_sentence else "masked_lm"


class BatchParams(Section):
    """Batch size, micro-batch size and learning rate of a training phase."""

    global_batch_size: Positive
    """Sequences per optimizer update."""
    micro_batch_size: Positive | None = None
    """Rows per forward pass; null: device.micro_batch_size."""
    loss_scaling: Annotated[float, Field(gt=0)] = 1.0
    """Factor that keeps fp16 gradients from underflowing; only the ipu runtime uses fp16."""
    learning_rate: Rate
    """Peak learning rate, reached at the end of the warm-up."""
    warmup_fraction: Fraction = 0.1
    """Share of updates during which the learning rate rises from zero."""
    schedule: Literal["linear", "cosine", "square_root", "constant", "trapezoid", "1-sqrt"] = "linear"
    """Learning rate after the warm-up: linear or cosine decay to zero, square_root (square root of the remaining
    share), constant, or constant until a decay at the end, which is linear (trapezoid) or 1 minus the square root of
    its progress (1-sqrt)."""
    decay_fraction: Annotated[float | None, left_out_as(None)] = None
    """Share of the updates in which trapezoid and 1-sqrt decay, at the end; null: for other schedules."""

    @model_validator(mode="after")
    def _check_decay_fits_schedule(self) -> Self:
        problem = find_decay_problem(self.schedule, self.warmup_fraction, self.decay_fraction)
        if problem is not None:
            raise ValueError(problem)
        return self


class PhaseParams(BatchParams):
    """Updates and batch of one pre-training phase. BERT's 1,000,000 updates, 10,000 of them warm-up, are split between
    the phases; each phase decays separately."""

    steps: Positive = 900_000
    """Number of optimizer updates."""
    global_batch_size: Positive = 256
    learning_rate: Rate = 1e-4
    warmup_fraction: Fraction = 0.01
    global_rope_theta: Annotated[float | None, Field(gt=1, lt=1e12), left_out_as(None)] = None
    """Base of the rotation of positions in the layers with global attention, from this phase on; larger for longer
    rows (arXiv 2412.13663). Only for families with rotary positions (docs/models.md). null: that of the model."""

    first_batch_size: Annotated[Positive | None, left_out_as(None)] = None
    """Sequences in the first update. The batch grows evenly from it to global_batch_size, as ModernBERT's does; not on
    IPUs. null: every update has global_batch_size."""
    batch_warmup_fraction: Annotated[float | None, Field(gt=0, le=1), left_out_as(None)] = None
    """Share of the updates during which the batch grows from first_batch_size."""

    @model_validator(mode="after")
    def _check_batch_grows(self) -> Self:
        problem = find_growth_problem(self.first_batch_size, self.global_batch_size, self.batch_warmup_fraction)
        if problem is not None:
            raise ValueError(problem)
        return self


class Phase2Params(PhaseParams):
    steps: Updates = 100_000
    """Number of optimizer updates; 0: there is no second phase."""


class AddedPhaseParams(Phase2Params):
    steps: Updates = 0
    """Number of optimizer updates; 0: there is no such phase."""


DEFAULT_PHASES = ("phase1", "phase2")
"""Phases of published BERT."""


class OptimizerParams(Section):
    """Optimizer settings: BERT's AdamW, with the bias correction that BERT omits."""

    optimizer: Literal["adamw", "adam", "lamb", "sgd"] = "adamw"
    """Optimizer: adamw, adam, lamb or sgd."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Weight decay; biases and layer norms are excluded."""
    beta1: Moment = 0.9
    """Decay rate of the first moment."""
    beta2: Moment = 0.999
    """Decay rate of the second moment."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the square root of the second moment."""
    bias_correction: bool = True
    """Correct the bias of the moments in early updates; published BERT does not."""
    first_moment_precision: Literal["auto", "fp32", "fp16"] = "auto"
    """Precision of the first moment: fp32, fp16 (ipu only), or auto to let the device choose."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Maximum gradient norm; larger gradients are clipped. null: no clipping."""


class PretrainParams(OptimizerParams, SectionOfPhases):
    added: ClassVar[Any] = AddedPhaseParams
    __pydantic_extra__: dict[str, AddedPhaseParams] = Field(init=False)
    enabled: bool = True
    """Run pre-training; false: fine-tune from base_model, or from random weights without one."""
    seed: Seed = 42
    """Random seed for initial weights, dropout and row order."""
    bias_correction: bool = False
    checkpoint_every_minutes: Minutes = CHECKPOINT_MINUTES
    """Minutes between checkpoints, which is the most work a crash can lose. Checkpoints are written in the background.
    0: only when the run is stopped."""
    checkpoint_every_updates: Updates = 0
    """Also write a checkpoint every N updates; 0: off."""
    evaluate_every_updates: Interval | None = 1000
    """Evaluate on the held-out rows every N updates and after the last one; below 1: every such share of the updates;
    null: never."""
    masking: Literal["static", "dynamic"] = "static"
    """static: masked tokens as in the rows; dynamic: others in every epoch, as RoBERTa (set duplicates to 1)."""
    evaluate_rows: Positive | None = 1024
    """Maximum number of held-out rows per evaluation; null: all."""
    phases: Annotated[list[PhaseName], Distinct, left_out_as([*DEFAULT_PHASES])] = [*DEFAULT_PHASES]
    """Names of the phases, in order; each starts from the weights of the one before it. A name of your own needs the
    sections pretrain.NAME and pretrain_rows.NAME."""
    phase1: PhaseParams = PhaseParams()
    """Training of the phase of this name."""
    phase2: Phase2Params = Phase2Params()
    """Training of the phase of this name."""

    @model_validator(mode="after")
    def _check_names_of_phases(self) -> Self:
        known = [*DEFAULT_PHASES, *self.added_phases]
        if taken := [name for name in self.phases if name in type(self).model_fields and name not in DEFAULT_PHASES]:
            raise ValueError(f"phases: {taken[0]} is the name of something else: choose another")
        if missing := [name for name in self.phases if name not in known]:
            raise ValueError(
                f"phases names {missing[0]}, but there is no pretrain.{missing[0]}: add this section, with its steps"
            )
        return self

    def get_phase(self, phase: str) -> PhaseParams:
        """Return the training of a phase."""
        training: PhaseParams = getattr(self, phase)
        return training

    def find_theta(self, phase: str) -> str | None:
        """Return the phase that sets the global_rope_theta of a phase: itself, or one before it; None if none does."""
        known = self.phases[: self.phases.index(phase) + 1]
        setting = [candidate for candidate in known if self.get_phase(candidate).global_rope_theta is not None]
        return setting[-1] if setting else None

    def list_phases(self) -> tuple[str, ...]:
        """Return the phases of the run, in order, up to the first without updates; none without pre-training."""
        return tuple(takewhile(lambda phase: self.get_phase(phase).steps, self.phases if self.enabled else ()))


class FinetuneParams(OptimizerParams, BatchParams):
    """Fine-tuning settings that every kind of task shares; each kind sets BERT's published defaults."""

    seed: Seed = 42
    """Random seed for the head's initial weights, dropout and row order."""
    epochs: Epochs = 3.0
    """Number of passes over the training examples."""
    hidden_dropout: Dropout | None = None
    """Dropout rate of activations; null: as in pre-training."""
    attention_dropout: Dropout | None = None
    """Dropout rate of attention weights; null: as in pre-training."""
    checkpoint_every_minutes: Minutes = CHECKPOINT_MINUTES
    """Minutes between checkpoints, which is the most work a crash can lose. Checkpoints are written in the background.
    0: only when the run is stopped."""
    checkpoint_every_updates: Updates = 0
    """Also write a checkpoint every N updates; 0: off."""
    evaluate_every_updates: Interval | None = None
    """Evaluate on held-out training examples every N updates and after the last one; below 1: every such share of the
    updates; null: never."""
    keep: Literal["last", "best"] = "last"
    """Weights to save: last, or best on the held-out training examples."""
    patience: Positive | None = None
    """Stop after N evaluations without a new best score; null: never stop early."""

    @model_validator(mode="after")
    def _check_evaluations(self) -> FinetuneParams:
        if self.evaluate_every_updates is None and (self.keep == "best" or self.patience is not None):
            raise ValueError(
                f"keep: {self.keep}, patience: {self.patience} need evaluations: set "
                "evaluate_every_updates, or keep: last and patience: null"
            )
        return self


class DeviceParams(Section):
    runtime: Literal["auto", "cpu", "cuda", "ipu"] = "auto"
    """cpu, cuda, ipu, or auto: IPUs if present, otherwise a GPU, otherwise the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """fp32, bf16, fp16 (ipu only), or auto: the faster precision of the device. On CPUs, auto measures both."""
    compile: Literal["auto", "none", "optimizer", "model"] = "auto"
    """none; optimizer: the LAMB update on cpu, a third faster; model: the layers on cuda; auto: on cuda the faster of
    none and model, which is measured when a job starts, elsewhere none."""
    micro_batch_size: Positive = 8
    """Rows per forward pass, for jobs that do not set their own."""
    recompute: bool = False
    """Recompute activations in the backward pass (cpu and cuda): less memory, about a third slower. It does not change
    results."""
    launcher: Literal["torchrun", "poprun"] | None = None
    """Start trainings with torchrun (cpu, cuda) or poprun (ipu), see docs/survive.md; null: as the runtime needs, with
    several processes or restarts only."""
    processes: Positive = 1
    """Number of processes of a training job on all hosts; each computes its share of every update."""
    restarts: Annotated[int, Field(ge=0)] = 0
    """Number of times torchrun restarts from the last checkpoint after a process dies."""

    @model_validator(mode="after")
    def _check_launcher(self) -> DeviceParams:
        serves = {"torchrun": ("auto", "cpu", "cuda"), "poprun": ("ipu",)}
        if self.recompute and self.runtime == "ipu":
            raise ValueError(
                "recompute: true applies to cpu and cuda only: set recompute to false. On IPUs, use "
                "recompute_checkpoint_every_layer in ipu_config.json"
            )
        if self.launcher is not None and self.runtime not in serves[self.launcher]:
            raise ValueError(
                f"launcher {self.launcher} supports {', '.join(serves[self.launcher])}, but runtime is "
                f"{self.runtime}: set one of these runtimes, or launcher: null"
            )
        if self.launched_by == "poprun" and self.restarts:
            raise ValueError(f"restarts={self.restarts} applies to torchrun (cpu, cuda) only: set restarts to 0")
        return self

    @property
    def launched_by(self) -> str | None:
        """Launcher of trainings; None: they are one process."""
        if self.launcher or (self.processes == 1 and not self.restarts):
            return self.launcher
        return "poprun" if self.runtime == "ipu" else "torchrun"


class IpuParams(SectionOfPhases):
    """Placement and memory on IPUs; ipu_model.ipu.config validates the keys."""

    added: ClassVar[Any] = dict[str, Any]
    __pydantic_extra__: dict[str, dict[str, Any] | None] = Field(init=False)

    config: Name = "inputs/ipu"
    """ipu_config.json as written by Optimum Graphcore, or its folder; a missing file means no config."""
    phase1: dict[str, Any] | None = None
    """ipu_config.json keys for the first phase; they override `config`."""
    phase2: dict[str, Any] | None = None
    """ipu_config.json keys for the second phase; they override `config`."""
    inference_execution: Literal["auto", "sharded", "pipelined"] = "auto"
    """sharded: one IPU of a replica computes at a time; pipelined: all do; auto: pipelined if possible."""

    def get_phase(self, phase: str) -> dict[str, Any] | None:
        """Return the ipu_config.json keys of a phase, if it has some."""
        config: dict[str, Any] | None = getattr(self, phase, None)
        return config


RUNTIMES = ("auto", "cpu", "cuda", "ipu")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class RuntimeSpec:
    """Runtime and precision to compute a model in, such as cpu:bf16; the precision defaults to auto."""

    runtime: str
    precision: str = "auto"

    @staticmethod
    def parse(text: str) -> RuntimeSpec:
        """Parse `RUNTIME[:PRECISION]`.

        Raises:
            ValueError: the runtime or the precision is unknown.
        """
        runtime, colon, precision = text.partition(":")
        if runtime not in RUNTIMES or (colon and precision not in PRECISIONS):
            raise ValueError(
                f"{text!r} must be RUNTIME[:PRECISION], for example cpu:bf16; runtimes are {', '.join(RUNTIMES)}, "
                f"precisions are {', '.join(PRECISIONS)}"
            )
        return RuntimeSpec(runtime, precision or "auto")


class TrackingParams(Section):
    """Experiment tracking. It does not change results, so no stage depends on it."""

    backends: Annotated[list[Literal["trackio", "wandb", "tensorboard", "mlflow"]], Distinct] = []
    """Experiment trackers to log trainings to; API keys and addresses come from the environment (docs/tracking.md)."""
    project: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}$")] = "podium"
    """Project name in the trackers, valid in all of them."""
    name: Name | None = None
    """Prefix of the name in the trackers, which ends with the stage; null: the name of the run."""
    group: Name | None = None
    """Name that groups runs; null: derived from the parameters. The same training in another group is a separate run.
    """
    folder: Name = "runs/tracking"
    """Folder of local tracking data."""


class CheckpointParams(Section):
    """Remote copies of checkpoints. They do not change results, so no stage depends on them."""

    remote: Name | None = None
    """Folder or URL (s3://bucket/path, sftp://host/path) to copy checkpoints to; null: do not copy them."""

    @model_validator(mode="after")
    def _check_no_password(self) -> CheckpointParams:
        if self.remote and urlsplit(self.remote).password is not None:
            raise ValueError("remote contains a password: remove it, and set it in the environment instead")
        return self


class PublishParams(Section):
    """Publishing of releases. Each entry sets its own target (EntryPublishParams)."""

    target: Literal["local", "hub"] = "local"
    """local: a folder in Hub layout; hub: a Hugging Face repository."""
    private: bool = True
    """Create repositories as private, and refuse to publish to a public one."""
    review: bool = False
    """Open a pull request on the Hub. The model is released (tagged) when you publish again after the merge."""
    examples: bool = False
    """Also publish the predictions and the evaluation page, which quote your data."""
    prefer: Literal["none", "smallest"] = "none"
    """smallest: name the smallest file of a model with exports that is not worse than the model by more than
    gate.max_export_drop (docs/production.md)."""
    signing: Literal["none", "key", "sigstore"] = "none"
    """Sign releases: with the private key that PODIUM_SIGNING_KEY names, or with an identity of Sigstore."""
    license: Word | None = None
    """Licence on the model card; null: the licence of the base model's README.md, if any. Releases on the Hub need one.
    """
    language: Word | None = None
    """Language on the model card; null: the language of the base model's README.md, if any. Releases on the Hub need
    one."""
    base_model: HubName | None = None
    """Base model on the model card, user/name on the Hub; null: base_model.repository, or the name in config.json or
    README.md of the base model, if any."""
    base_name: Name | None = None
    """Name of a base model that is not on the Hub, on the model card; null: "an existing model"."""

    @model_validator(mode="after")
    def _check_review_target(self) -> PublishParams:
        if self.review and self.target != "hub":
            raise ValueError("review: true opens a pull request, which needs target: hub")
        return self
