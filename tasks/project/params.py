"""params.yaml, read strictly: one frozen section per stage, an unknown key is an error.

`podium params` shows, lists and compares what results from presets and `--set`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from tasks.project import artifacts
from tasks.project.errors import ParamsError
from tasks.project.param_glue import GlueGateParams, GlueParams, GluePublishParams
from tasks.project.param_inputs import (
    BaseModelParams,
    CorpusParams,
    PretrainRowsParams,
    QuestionsParams,
    RowsParams,
    SquadRowsParams,
    TokenizerParams,
)
from tasks.project.param_publish import PublishParams
from tasks.project.param_sections import (
    CheckpointParams,
    DeviceParams,
    Fraction,
    IpuParams,
    ParityParams,
    Positive,
    ReleaseParams,
    Section,
    Seed,
    TrackingParams,
)
from tasks.project.strict_yaml import nearest, read_yaml

PHASES = ("phase1", "phase2")

S = TypeVar("S", bound=Section)


class ValidateParams(Section):
    min_documents: Positive
    min_questions: Positive
    max_control_share: Fraction
    max_document_characters: Positive
    data_docs: bool


class ModelParams(Section):
    hidden_size: Positive
    num_layers: Positive
    num_heads: Positive
    intermediate_size: Positive
    max_positions: Positive
    hidden_dropout: Annotated[float, Field(ge=0, lt=1)]
    attention_dropout: Annotated[float, Field(ge=0, lt=1)]
    layer_norm_eps: Annotated[float, Field(gt=0)]
    initializer_range: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> ModelParams:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size={self.hidden_size} must be a multiple of num_heads={self.num_heads}")
        return self


class BatchParams(Section):
    """The batch behind one update and how it is learned from; `None` is device.micro_batch_size."""

    global_batch_size: Positive
    micro_batch_size: Positive | None
    loss_scaling: Annotated[float, Field(gt=0)]
    learning_rate: Annotated[float, Field(gt=0)]
    warmup_fraction: Fraction
    schedule: Literal["linear", "cosine", "square_root", "constant"]


class PhaseParams(BatchParams):
    steps: Positive


class OptimizerParams(Section):
    optimizer: Literal["adamw", "adam", "lamb", "sgd"]
    weight_decay: Annotated[float, Field(ge=0)]
    beta1: Annotated[float, Field(ge=0, lt=1)]
    beta2: Annotated[float, Field(ge=0, lt=1)]
    eps: Annotated[float, Field(gt=0)]
    bias_correction: bool
    first_moment_precision: Literal["auto", "fp32", "fp16"]
    max_grad_norm: Annotated[float, Field(gt=0)] | None


class PretrainParams(OptimizerParams):
    enabled: bool
    seed: Seed
    checkpoint_every_updates: Annotated[int, Field(ge=0)]
    evaluate_every_updates: Positive | None
    evaluate_rows: Positive | None
    phase1: PhaseParams
    phase2: PhaseParams


class FinetuneParams(OptimizerParams, BatchParams):
    """Fine-tuning on any task."""

    seed: Seed
    epochs: Annotated[float, Field(gt=0)]
    hidden_dropout: Annotated[float, Field(ge=0, lt=1)] | None
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] | None
    checkpoint_every_updates: Annotated[int, Field(ge=0)]
    evaluate_every_updates: Positive | None
    keep: Literal["last", "best"]
    patience: Positive | None

    @model_validator(mode="after")
    def _choosing_needs_evaluations(self) -> FinetuneParams:
        if self.evaluate_every_updates is None and (self.keep == "best" or self.patience is not None):
            raise ValueError(
                f"keep: {self.keep}, patience: {self.patience} need evaluations to choose by: set "
                "evaluate_every_updates, or keep: last and patience: null"
            )
        return self


class EvaluateParams(Section):
    n_best: Positive
    max_answer_length: Positive


class GateParams(ReleaseParams):
    min_f1: Annotated[float, Field(ge=0, le=100)]
    min_exact_match: Annotated[float, Field(ge=0, le=100)] | None
    max_f1_drop: Annotated[float, Field(ge=0, le=100)]
    max_exact_match_drop: Annotated[float, Field(ge=0, le=100)]


class Params(Section):
    """The whole of params.yaml; a stage takes only its own section."""

    corpus: CorpusParams
    tokenizer: TokenizerParams
    questions: QuestionsParams
    validate_: Annotated[ValidateParams, Field(alias="validate")]
    packing: bool
    pretrain_rows: PretrainRowsParams
    squad_rows: SquadRowsParams
    model: ModelParams
    base_model: BaseModelParams
    device: DeviceParams
    ipu: IpuParams
    checkpoint: CheckpointParams
    tracking: TrackingParams
    pretrain: PretrainParams
    finetune: FinetuneParams
    evaluate: EvaluateParams
    parity: ParityParams
    gate: GateParams
    publish: PublishParams
    glue: GlueParams
    glue_rows: RowsParams
    glue_finetune: FinetuneParams
    glue_gate: GlueGateParams
    glue_publish: GluePublishParams

    @model_validator(mode="after")
    def _glue_has_its_own_repository(self) -> Params:
        if self.glue.tasks and self.publish.target == "hub" and not self.glue_publish.repository:
            raise ValueError(
                "publish.target: hub needs glue_publish.repository: user/name, which gets -<task> at its end"
            )
        return self

    @model_validator(mode="after")
    def _pre_training_has_one_source(self) -> Params:
        rows, corpus = self.pretrain_rows.source, self.corpus.source
        if rows == "corpus" and corpus == "none":
            raise ValueError("corpus.source=none leaves no text for rows: set pretrain_rows.source to files or hub")
        if rows != "corpus" and corpus != "none":
            raise ValueError(
                f"pretrain_rows.source={rows} reads prepared sequences, and the corpus ({corpus}) would be made for "
                "nothing: set corpus.source to none"
            )
        if rows != "corpus" and self.tokenizer.source == "train":
            raise ValueError(
                f"pretrain_rows.source={rows} needs the vocabulary that the sequences were prepared with: set "
                "tokenizer.source to file or hub"
            )
        return self

    @model_validator(mode="after")
    def _what_is_evaluated_was_held_out(self) -> Params:
        for section, tuning, rows, made in (
            ("finetune", self.finetune, "squad_rows", self.squad_rows),
            ("glue_finetune", self.glue_finetune, "glue_rows", self.glue_rows),
        ):
            if tuning.evaluate_every_updates is not None and not made.held_out_fraction:
                raise ValueError(
                    f"{section}.evaluate_every_updates={tuning.evaluate_every_updates} needs examples that training "
                    f"does not see: set {rows}.held_out_fraction, for example to 0.05"
                )
        return self

    @model_validator(mode="after")
    def _rows_fit_the_model(self) -> Params:
        lengths = {
            "pretrain_rows.phase1.row_length": self.pretrain_rows.phase1.row_length,
            "pretrain_rows.phase2.row_length": self.pretrain_rows.phase2.row_length,
            "squad_rows.row_length": self.squad_rows.row_length,
            **({"glue_rows.row_length": self.glue_rows.row_length} if self.glue.tasks else {}),
        }
        for name, length in lengths.items():
            if length > self.model.max_positions:
                raise ValueError(f"{name}={length} exceeds model.max_positions={self.model.max_positions}")
        return self


def load_params(path: Path = artifacts.PARAMS) -> Params:
    """The checked content of params.yaml.

    Raises:
        ParamsError: all problems of the file in one message, each with the nearest valid name or the range.
    """
    return check(read_yaml(Path(path)), str(path))


def packed(section: S, packing: bool) -> S:
    """The section of a stage that makes rows, as `packing` has it: off, a row holds one sequence.

    Updates stay what the recipe states, as a global batch counts sequences: fewer in a row are more rows.
    """
    return section if packing else section.model_copy(update={"max_sequences_per_row": 1})


def check(values: dict[str, Any], where: str = "params") -> Params:
    """Build Params from plain values; `where` names their source in messages."""
    return build(Params, values, where)


def build(kind: type[S], values: dict[str, Any], where: str) -> S:
    """A section from plain values; `where` names their source in messages.

    Raises:
        ParamsError: all problems in one message, each with the nearest valid name or the range.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = "\n".join(f"  {_explain(problem, kind)}" for problem in error.errors())
        raise ParamsError(f"{where} cannot be used:\n{problems}") from None


def _explain(problem: Any, kind: type[Section]) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        section = _section_at(problem["loc"][:-1], kind)
        return f"{place} is not known{nearest(str(problem['loc'][-1]), section)}"
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"] == "value_error":
        return f"{place + ': ' if place else ''}{problem['ctx']['error']}"
    return f"{place}={problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _section_at(place: Sequence[Any], kind: type[Section]) -> list[str]:
    section: Any = kind
    for part in place:
        fields = section.model_fields
        section = next((f.annotation for n, f in fields.items() if part in (n, f.alias)), kind)
    return [field.alias or name for name, field in section.model_fields.items()]


def parameter_values(params: Params) -> dict[str, Any]:
    """The checked params.yaml as plain values, keys as in the file."""
    return params.model_dump(mode="json", by_alias=True)
