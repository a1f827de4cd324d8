"""Peer side: Hugging Face's Trainer on its own BERT models, with the same sequences and optimizer settings."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bench.peer_data import Collator, read_sequences
from bench.protocol import Sample, Session, Stopwatch
from bench.setup import OPTIMIZER, SEED, WARMUP_FRACTION, Training
from ipu_model.models.config import ModelConfig
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import RowFolder

GROUPED_BATCHES = 50
"""Batches per group; Trainer sorts by length within a group."""


def train(spec: dict[str, Any], session: Session) -> None:
    """Measure updates of Trainer including collation; units are real tokens.

    Settings: precision (fp32, bf16), padding (max: to the row length; longest: of the batch), sampling.
    """
    training = Training.from_spec(spec)
    rows = RowFolder(Path(training.rows), training.row_kind, training.model)
    run_trainer(
        spec,
        session,
        rows,
        training.sequences,
        make_model(training),
        Collator(training.task, padded_length(spec, rows)),
    )


def padded_length(spec: dict[str, Any], rows: RowFolder) -> int | None:
    """Return the length of every batch for the setting `padding`; None: that of its longest sequence."""
    return rows.manifest.row_length if spec["settings"].get("padding", "max") == "max" else None


def run_trainer(
    spec: dict[str, Any], session: Session, rows: RowFolder, sequences: int, model: torch.nn.Module, collator: Collator
) -> None:
    """Measure updates of `sequences` sequences, as `train`."""
    torch.set_num_threads(spec["threads"])
    settings = spec["settings"]
    updates = spec["updates"] * spec["rounds"] + spec["warmup"]
    grouped = settings.get("sampling") == "group_by_length"
    # Grouped: use one group of batches, so that every epoch has every length; a round should be whole epochs.
    batches = GROUPED_BATCHES if grouped else updates
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=sequences,
            max_steps=updates,
            bf16=settings["precision"] == "bf16",
            seed=SEED,
            learning_rate=OPTIMIZER.learning_rate,
            weight_decay=OPTIMIZER.weight_decay,
            adam_beta1=OPTIMIZER.beta1,
            adam_beta2=OPTIMIZER.beta2,
            adam_epsilon=OPTIMIZER.eps,
            max_grad_norm=OPTIMIZER.max_grad_norm,
            warmup_steps=round(updates * WARMUP_FRACTION),
            train_sampling_strategy=settings.get("sampling", "random"),
            **quiet_arguments(),
        )
        data = read_sequences(rows, sequences * batches, SEED)
        callbacks = [Rounds(spec, session, collator)]
        Trainer(model, arguments, train_dataset=data, data_collator=collator, callbacks=callbacks).train()


def quiet_arguments() -> dict[str, Any]:
    """Return arguments that keep Trainer on the CPU and turn off its output."""
    return {"use_cpu": True, "report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}


class Rounds(TrainerCallback):
    """Callback that groups Trainer's steps into the rounds that the parent requests.

    A step is measured from the end of the previous one, so it includes loading and collating its batch.
    """

    def __init__(self, spec: dict[str, Any], session: Session, collator: Collator) -> None:
        self._spec, self._session, self._collator = spec, session, collator
        self._watch, self._samples, self._steps = Stopwatch(), list[Sample](), 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Take a sample; between rounds, wait for the parent."""
        self._steps += 1
        tokens = self._collator.real_tokens.popleft()
        if self._steps > self._spec["warmup"]:
            self._samples.append(self._watch.sample(tokens))
        if self._steps < self._spec["warmup"] or 0 < len(self._samples) < self._spec["updates"]:
            return control
        if self._samples:
            self._session.report(self._samples)
            self._samples = []
        if not self._session.next_round():
            control.should_training_stop = True
        self._watch.start()
        return control


def make_config(config: ModelConfig, **more: Any) -> BertConfig:
    """Return Hugging Face's configuration of an architecture; `more` are fields of it that ours does not have."""
    return BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_positions,
        type_vocab_size=config.type_vocab_size,
        hidden_dropout_prob=config.hidden_dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        layer_norm_eps=config.layer_norm_eps,
        **more,
    )


def make_model(training: Training) -> torch.nn.Module:
    """Make Hugging Face's model of the task, with the initial weights of ours."""
    config = training.model
    theirs = (BertForPreTraining if training.task == "pretrain" else BertForQuestionAnswering)(make_config(config))
    ours = build_model(training.head, config)
    initialise(ours, config, SEED)
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    # The decoder shares its weight with the embeddings and its bias with the head, so these names are not missing.
    assert not unexpected, unexpected
    assert all(name.startswith("cls.predictions.decoder.") for name in missing), missing
    return theirs
