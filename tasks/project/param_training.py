"""Sections of params.yaml that say how a model is trained: optimizer, batch, schedule, and when it is looked at.

The defaults of pre-training are BERT's: batch, updates, learning rate and warm-up as its paper states them (Devlin et
al. 2019, appendix A.2), the rest as optimization.py and run_pretraining.py of github.com/google-research/bert.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_sections import Fraction, Positive, Section, Seed

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


class BatchParams(Section):
    """The batch behind one update and how it is learned from; `None` is device.micro_batch_size."""

    global_batch_size: Positive
    micro_batch_size: Positive | None = None
    loss_scaling: Annotated[float, Field(gt=0)] = 1.0
    learning_rate: Rate
    warmup_fraction: Fraction = 0.1
    schedule: Literal["linear", "cosine", "square_root", "constant"] = "linear"


class PhaseParams(BatchParams):
    """BERT's 1,000,000 updates with 10,000 of warm-up, by phases: each has its share of both, and decays by itself."""

    steps: Positive = 900_000
    global_batch_size: Positive = 256
    learning_rate: Rate = 1e-4
    warmup_fraction: Fraction = 0.01


class Phase2Params(PhaseParams):
    steps: Positive = 100_000


class OptimizerParams(Section):
    """AdamW as BERT's, with the correction of its moments that BERT's lacks."""

    optimizer: Literal["adamw", "adam", "lamb", "sgd"] = "adamw"
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    beta1: Moment = 0.9
    beta2: Moment = 0.999
    eps: Annotated[float, Field(gt=0)] = 1e-6
    bias_correction: bool = True
    first_moment_precision: Literal["auto", "fp32", "fp16"] = "auto"
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0


class PretrainParams(OptimizerParams):
    enabled: bool = True
    seed: Seed = 42
    bias_correction: bool = False
    checkpoint_every_minutes: Minutes = CHECKPOINT_MINUTES
    checkpoint_every_updates: Updates = 0
    evaluate_every_updates: Positive | None = 1000
    evaluate_rows: Positive | None = 1024
    phase1: PhaseParams = PhaseParams()
    phase2: Phase2Params = Phase2Params()


class FinetuneParams(OptimizerParams, BatchParams):
    """Fine-tuning for any kind of task; each kind states what BERT takes for it."""

    seed: Seed = 42
    epochs: Epochs = 3.0
    hidden_dropout: Dropout | None = None
    attention_dropout: Dropout | None = None
    checkpoint_every_minutes: Minutes = CHECKPOINT_MINUTES
    checkpoint_every_updates: Updates = 0
    evaluate_every_updates: Positive | None = None
    keep: Literal["last", "best"] = "last"
    patience: Positive | None = None

    @model_validator(mode="after")
    def _choosing_needs_evaluations(self) -> FinetuneParams:
        if self.evaluate_every_updates is None and (self.keep == "best" or self.patience is not None):
            raise ValueError(
                f"keep: {self.keep}, patience: {self.patience} need evaluations to choose by: set "
                "evaluate_every_updates, or keep: last and patience: null"
            )
        return self
