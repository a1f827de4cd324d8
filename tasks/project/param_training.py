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
