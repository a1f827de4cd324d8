"""What a section of params.yaml is, and the sections that say which data are read, how a model is trained, and where.

The defaults are BERT's. Of rows they are those of create_pretraining_data.py of github.com/google-research/bert, where
it has the parameter. Of pre-training, batch, updates, learning rate and warm-up are those of its paper (Devlin et al.
2019, appendix A.2), the rest as optimization.py and run_pretraining.py there. The whole file is in params.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal
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

Fraction = Annotated[float, Field(ge=0, le=1)]
HeldOut = Annotated[float, Field(ge=0, le=0.5)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
SHORTEST_ROW = 16
RowLength = Annotated[int, Field(ge=SHORTEST_ROW, le=32767)]


def _named(pattern: str, rule: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"is {text!r}, must be {rule}")
        return text

    return AfterValidator(check)


def _written(pattern: str) -> WithJsonSchema:
    """The same rule for editors."""
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


Text = Annotated[str, StringConstraints(min_length=1)]
LINE = r"[^\x00-\x1f\x7f]+"
Name = Annotated[str, _named(LINE, "one line of text, without control characters, and not empty"), _written(LINE)]
"""Name of a file, a column or a run."""
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
"""The name of a model or data set on the Hub."""
HubName = Annotated[
    str, _named(HUB_NAME.pattern, "user/name, of letters, digits, '-', '_' and '.'"), _written(HUB_NAME.pattern)
]
WORD = r"[A-Za-z0-9][A-Za-z0-9.+-]*"
Word = Annotated[str, _named(WORD, "one word of letters, digits, '.', '+' and '-'"), _written(WORD)]
"""Name of a license or a language."""
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
SEPARATOR = rf"{'|'.join(SEPARATORS)}|\t|[!#$%&*+,./:;=?@^_`|~-]"
Separator = Annotated[
    str,
    _named(SEPARATOR, f"{', '.join(SEPARATORS)}, or one sign"),
    AfterValidator(lambda word: SEPARATORS.get(word, word)),
    _written(SEPARATOR),
]
"""What separates the fields of a table."""
Dropout = Annotated[float, Field(ge=0, lt=1)]
Moment = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0)]
Epochs = Annotated[float, Field(gt=0)]
Updates = Annotated[int, Field(ge=0)]
Minutes = Annotated[float, Field(ge=0, allow_inf_nan=False)]
CHECKPOINT_MINUTES = 10.0
"""What a training may lose when its host does. Young's formula, sqrt(2 x cost of a checkpoint x time between failures)
(CACM 17 (9), 1974), gives 10 minutes for a checkpoint that holds a training up for 2 s on a host that fails once a
day; it is flat around its best."""


class Section(BaseModel):
    """Frozen, no unknown keys, no silent conversion (the text "3" is no number), no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def get_fields(cls) -> dict[str, FieldInfo]:
        """Return its parameters by their keys in the file."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}


def get_default(field: FieldInfo) -> Any:
    """Return the default of a parameter or section as the file states it; None where there is none."""
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Section):
        return default.model_dump(mode="json")
    inner = field.annotation
    if field.is_required() and isinstance(inner, type) and issubclass(inner, Section):
        return {key: get_default(one) for key, one in inner.get_fields().items()}
    return None if field.is_required() else default


class CorpusParams(Section):
    source: Literal["demo", "files", "hub", "none"] = "files"
    """demo: generated; files: your text in `path`; hub: a Hub data set; none: there is no text."""
    path: Name = "inputs/corpus"
    """A file or a folder (.txt, .jsonl, .csv, .parquet, WikiExtractor's output), for source: files."""
    text_column: Name = "text"
    """Column of the text, of .jsonl, .csv, .parquet and Hub data sets."""
    title_column: Name | None = None
    """Column of the title; null: `title`, where there is one."""
    id_column: Name | None = None
    """Column of a document's name; null: `document_id`, where there is one, else file and number."""
    separator: Separator | None = None
    """What separates the fields of .csv files (comma, semicolon, tab, pipe, or a sign); null: it is found."""
    layout: Literal["auto", "wikitext", "paragraphs", "wikiextractor"] = "auto"
    """Of .txt: wikitext (= Title = headings), paragraphs (a blank line begins a new document), wikiextractor, or
    auto."""
    seed: Seed = 1
    """Of the generated text, for source: demo."""
    demo_documents: Positive = 20000
    """Generated documents, about 52 tokens each; memory stays flat for any number."""
    dataset: str | None = None
    """Name of a Hub data set, for source: hub."""
    dataset_config: str | None = None
    """Configuration of that data set; null: its only one."""
    dataset_split: Name = "train"
    """Split of that data set."""
    dataset_revision: str | None = None
    """Commit, branch or tag of that data set; a commit makes the run reproducible."""


class TokenizerParams(Section):
    source: Literal["train", "file", "hub"] = "train"
    """train: WordPiece on the corpus; file: a vocab.txt in `path`; hub: a tokenizer of the Hub."""
    path: Name = "inputs/tokenizer"
    """A vocab.txt or a folder with one, for source: file."""
    vocabulary_size: Annotated[int, Field(ge=100, le=2**31)] = 30522
    """Entries at most, for source: train; bert-base-uncased has 30,522."""
    lowercase: bool = True
    """Whether text is put into small letters and loses its accents."""
    repository: str | None = None
    """Name of a Hub model, for source: hub."""
    revision: str | None = None
    """Commit, branch or tag of that model; a commit makes the run reproducible."""


class BaseModelParams(Section):
    """A model to start from, in place of fresh weights."""

    source: Literal["none", "folder", "hub"] = "none"
    """none, folder (in `path`) or hub: config.json with safetensors or pytorch_model.bin."""
    path: Name = "inputs/model"
    """Folder of the model, for source: folder."""
    repository: str | None = None
    """Name of a Hub model, for source: hub."""
    revision: str | None = None
    """Commit, branch or tag of that model; a commit makes the run reproducible."""


class PhaseRowsParams(Section):
    row_length: RowLength = 128
    """Tokens in a row."""
    max_predictions_per_row: Positive | None = None
    """Masked tokens of a row at most; null: 20 at 128, 56 at 384, 76 at 512, else masked_fraction of the row and
    one more."""
    duplicates: Positive = 10
    """Different maskings of the same text."""
    path: Name = "inputs/prepared"
    """A file or folder of .parquet, .arrow or .tfrecord, for source: files."""
    dataset: str | None = None
    """Name of a Hub data set, for source: hub."""
    dataset_revision: str | None = None
    """Commit, branch or tag of that data set."""


class Phase2RowsParams(PhaseRowsParams):
    row_length: RowLength = 512


class PretrainRowsParams(Section):
    source: Literal["corpus", "files", "hub"] = "corpus"
    """corpus: made of it; files, hub: sequences that are tokenized and masked already (docs/inputs.md)."""
    seed: Seed = 12345
    """Of sentence pairs, masking and what is held out."""
    masked_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.15
    """Share of the tokens that are masked."""
    short_sequence_probability: Fraction = 0.1
    """Share of the sequences that are made shorter than a row could hold."""
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 1
    """Sequences that share a row at most."""
    held_out_fraction: HeldOut = 0.01
    """Share of the documents whose rows no training sees, to evaluate pre-training on; 0: none. BERT has no such
    share."""
    shares: list[Positive] = Field(default_factory=list)
    """[1, 2, 3, 4]: with --on-workers, four workers make the rows together (docs/data-scale.md). It changes no row."""
    phase1: PhaseRowsParams = PhaseRowsParams()
    """The first phase, on short rows."""
    phase2: Phase2RowsParams = Phase2RowsParams()
    """The second phase, on long rows."""

    @model_validator(mode="after")
    def _shares_are_counted_up(self) -> PretrainRowsParams:
        if self.shares != list(range(1, len(self.shares) + 1)):
            raise ValueError(f"shares={self.shares} must count from 1 up, for example [1, 2, 3, 4] for four workers")
        if self.shares and self.source != "corpus":
            raise ValueError(f"shares are of rows that are made of text, found source={self.source}: set shares to []")
        return self


class BatchParams(Section):
    """The batch behind one update and how it is learned from; `None` is device.micro_batch_size."""

    global_batch_size: Positive
    """Sequences behind one update."""
    micro_batch_size: Positive | None = None
    """Rows in one forward pass; null: device.micro_batch_size."""
    loss_scaling: Annotated[float, Field(gt=0)] = 1.0
    """Factor that keeps fp16 gradients from vanishing; only ipu has fp16."""
    learning_rate: Rate
    """The highest rate, at the end of the warm-up."""
    warmup_fraction: Fraction = 0.1
    """Share of the updates in which the rate rises from zero."""
    schedule: Literal["linear", "cosine", "square_root", "constant"] = "linear"
    """After the warm-up: linear or cosine to zero, square_root (of what is left), or constant."""


class PhaseParams(BatchParams):
    """BERT's 1,000,000 updates with 10,000 of warm-up, by phases: each has its share of both, and decays by itself."""

    steps: Positive = 900_000
    """Optimizer updates."""
    global_batch_size: Positive = 256
    learning_rate: Rate = 1e-4
    warmup_fraction: Fraction = 0.01


class Phase2Params(PhaseParams):
    steps: Positive = 100_000


class OptimizerParams(Section):
    """AdamW as BERT's, with the correction of its moments that BERT's lacks."""

    optimizer: Literal["adamw", "adam", "lamb", "sgd"] = "adamw"
    """adamw, adam, lamb or sgd."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Of all weights but biases and layer norms."""
    beta1: Moment = 0.9
    """Decay of the first moment."""
    beta2: Moment = 0.999
    """Decay of the second moment."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the root of the second moment."""
    bias_correction: bool = True
    """Of the moments in the first updates; BERT as published goes without."""
    first_moment_precision: Literal["auto", "fp32", "fp16"] = "auto"
    """fp32, fp16, or auto: that of the device; only ipu has fp16."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Gradients are clipped to this norm; null: they are not."""


class PretrainParams(OptimizerParams):
    enabled: bool = True
    """false: fine-tuning starts from base_model, or from fresh weights where there is none."""
    seed: Seed = 42
    """Of fresh weights, dropout and the order of rows."""
    bias_correction: bool = False
    checkpoint_every_minutes: Minutes = CHECKPOINT_MINUTES
    """What a kill may cost; a checkpoint is written beside the training; 0: none, but for one at a stop."""
    checkpoint_every_updates: Updates = 0
    """A checkpoint every so many updates, in addition; 0: none."""
    evaluate_every_updates: Positive | None = 1000
    """How often the held-out rows are looked at, which is also done after the last update; null: never."""
    evaluate_rows: Positive | None = 1024
    """Held-out rows looked at, at most; null: all."""
    phase1: PhaseParams = PhaseParams()
    """The training of the first phase."""
    phase2: Phase2Params = Phase2Params()
    """The training of the second phase, which starts from the weights of the first."""


class FinetuneParams(OptimizerParams, BatchParams):
    """Fine-tuning for any kind of task; each kind states what BERT takes for it."""

    seed: Seed = 42
    """Of the head's fresh weights, dropout and the order of rows."""
    epochs: Epochs = 3.0
    """Times that every training example is seen."""
    hidden_dropout: Dropout | None = None
    """Share of activations dropped; null: as the model was pre-trained."""
    attention_dropout: Dropout | None = None
    """Share of attention weights dropped; null: as the model was pre-trained."""
    checkpoint_every_minutes: Minutes = CHECKPOINT_MINUTES
    """What a kill may cost; a checkpoint is written beside the training; 0: none, but for one at a stop."""
    checkpoint_every_updates: Updates = 0
    """A checkpoint every so many updates, in addition; 0: none."""
    evaluate_every_updates: Positive | None = None
    """How often held-out training examples are scored, which is also done after the last update; null: never."""
    keep: Literal["last", "best"] = "last"
    """last, or best: the weights that scored best on held-out training examples."""
    patience: Positive | None = None
    """Stop after so many evaluations in a row without a new best; null: never."""

    @model_validator(mode="after")
    def _choosing_needs_evaluations(self) -> FinetuneParams:
        if self.evaluate_every_updates is None and (self.keep == "best" or self.patience is not None):
            raise ValueError(
                f"keep: {self.keep}, patience: {self.patience} need evaluations to choose by: set "
                "evaluate_every_updates, or keep: last and patience: null"
            )
        return self


class DeviceParams(Section):
    runtime: Literal["auto", "cpu", "cuda", "ipu"] = "auto"
    """cpu, cuda, ipu, or auto: IPUs, else a GPU, else the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """fp32, bf16, fp16 (on ipu), or auto: the faster one of the device, which a CPU measures."""
    compile: Literal["none", "optimizer"] = "none"
    """none, or optimizer: LAMB's update compiled on cpu, a third faster."""
    micro_batch_size: Positive = 8
    """Rows in one forward pass, where a job states no other."""
    recompute: bool = False
    """On cpu and cuda: keep less of a forward pass and compute it again, a third slower. It changes no result."""
    launcher: Literal["torchrun", "poprun"] | None = None
    """torchrun (cpu, cuda) or poprun (ipu) trains with several processes (docs/survive.md); null: one process."""
    processes: Positive = 1
    """Processes of a training job, all hosts together; each trains on its share of every update."""
    restarts: Annotated[int, Field(ge=0)] = 0
    """Times that torchrun begins again from the last checkpoint when a process dies."""

    @model_validator(mode="after")
    def _the_launcher_serves_the_device(self) -> DeviceParams:
        serves = {"torchrun": ("cpu", "cuda"), "poprun": ("ipu",)}
        if self.recompute and self.runtime == "ipu":
            raise ValueError(
                "recompute: true is of cpu and cuda; on IPUs it is recompute_checkpoint_every_layer of an "
                "ipu_config.json: set recompute to false"
            )
        if self.launcher is not None and self.runtime not in serves[self.launcher]:
            raise ValueError(
                f"launcher {self.launcher} starts jobs on {' and '.join(serves[self.launcher])}, found "
                f"runtime={self.runtime}: state one of them, or launcher: null"
            )
        if self.launcher is None and self.processes > 1:
            raise ValueError(f"processes={self.processes} needs launcher: torchrun (cpu, cuda) or poprun (ipu)")
        if self.launcher != "torchrun" and self.restarts:
            raise ValueError(f"restarts={self.restarts} needs launcher: torchrun; others do not start again")
        return self


class IpuParams(Section):
    """Placement and memory on IPUs; the keys of the mappings are checked by ipu_model.ipu.config."""

    config: Name = "inputs/ipu"
    """An ipu_config.json, as Optimum Graphcore writes it, or its folder; one that is not there: none."""
    phase1: dict[str, Any] | None = None
    """Keys of an ipu_config.json for the first phase, laid over that file."""
    phase2: dict[str, Any] | None = None
    """Keys of an ipu_config.json for the second phase, laid over that file."""
    inference_execution: Literal["auto", "sharded", "pipelined"] = "auto"
    """sharded: one IPU of a replica works at a time; pipelined: all do; auto: where it can."""


RUNTIMES = ("auto", "cpu", "cuda", "ipu")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Place:
    """Where a model is computed: cpu:bf16, or cpu, which leaves the precision to the device (auto)."""

    runtime: str
    precision: str = "auto"

    @staticmethod
    def of(text: str) -> Place:
        """Read `RUNTIME[:PRECISION]`.

        Raises:
            ValueError: it names no runtime or precision of this program.
        """
        runtime, colon, precision = text.partition(":")
        if runtime not in RUNTIMES or (colon and precision not in PRECISIONS):
            raise ValueError(
                f"{text!r} must be RUNTIME[:PRECISION], a runtime of {', '.join(RUNTIMES)} and a precision of "
                f"{', '.join(PRECISIONS)}, for example cpu:bf16"
            )
        return Place(runtime, precision or "auto")


class TrackingParams(Section):
    """Where trainings are watched; it changes no result, so that no stage depends on it."""

    backends: list[Literal["trackio", "wandb", "tensorboard", "mlflow"]] = Field(default_factory=list)
    """Trackers that record trainings; keys and addresses come from the environment (docs/tracking.md)."""
    project: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}$")] = "podium"
    """What the project is called there; a name that every tracker takes."""
    name: Name | None = None
    """Put before the name of the stage, which a run is called by."""
    group: Name | None = None
    """What runs belong together by; null: the parameters. The same training in another group is another run."""
    folder: Name = "runs/tracking"
    """Where what is recorded on this host goes."""

    @model_validator(mode="after")
    def _each_once(self) -> TrackingParams:
        if len(set(self.backends)) < len(self.backends):
            raise ValueError(f"backends={self.backends} names one twice")
        return self


class CheckpointParams(Section):
    """Where checkpoints travel to; it changes no result, so that no stage depends on it."""

    remote: Name | None = None
    """A folder or URL (s3://bucket/path, sftp://host/path) that checkpoints are copied to; null: none."""

    @model_validator(mode="after")
    def _no_secret(self) -> CheckpointParams:
        if self.remote and urlsplit(self.remote).password is not None:
            raise ValueError("remote holds a password, and params.yaml is for everybody: leave it to the environment")
        return self


class PublishParams(Section):
    """Where a release goes is said by its entry (EntryPublishParams)."""

    target: Literal["local", "hub"] = "local"
    """local: a folder in Hub layout; hub: a Hugging Face repository."""
    private: bool = True
    """A repository that is created is private, and a public one is refused."""
    review: bool = False
    """Open a pull request on the Hub; the model is released (tagged) once that is merged and published again."""
    examples: bool = False
    """Predictions and the page of the evaluation, which quote your data, are published, too."""
    license: Word | None = None
    """Licence of the model on its card; null: that of the base model's README.md, or none. A release on the Hub needs
    one."""
    language: Word | None = None
    """Language of the model on its card; null: that of the base model's README.md, or none. A release on the Hub needs
    one."""
    base_model: HubName | None = None
    """Name of the base model on the card, user/name on the Hub; null: base_model.repository, or what config.json or
    README.md of the base model state, or none."""

    @model_validator(mode="after")
    def _a_review_needs_the_hub(self) -> PublishParams:
        if self.review and self.target != "hub":
            raise ValueError("review: true opens a pull request, which needs target: hub")
        return self
