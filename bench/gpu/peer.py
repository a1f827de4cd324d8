"""The peer on a GPU: Hugging Face's Trainer with the same sequences, model size, optimizer and precision."""

from __future__ import annotations

import tempfile
from typing import Any

from transformers import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bench.gpu.cases import CLASSES, CPU, GpuCase, HeldRows
from bench.gpu.device import read_clock, read_peak_memory_mb
from bench.peer import make_config
from bench.peer_data import Collator, read_sequences
from bench.protocol import Sample, Session
from bench.setup import OPTIMIZER, SEED, WARMUP_FRACTION

MODELS = {
    "pretrain": BertForPreTraining,
    "squad": BertForQuestionAnswering,
    "classification": BertForSequenceClassification,
}
"""Model by task."""
DISTINCT_BATCHES = 64
MULTIPLE = 8
"""Lengths of batches: tensor cores are slower on others."""


class Rounds(TrainerCallback):
    """Callback that takes one sample a round: `updates` steps, loading and collating included."""

    def __init__(self, spec: dict[str, Any], session: Session, collator: Collator) -> None:
        self._spec, self._session, self._collator = spec, session, collator
        self._steps, self._tokens, self._began = 0, 0.0, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Count a step; at the end of a round, report it and wait for the parent."""
        self._steps += 1
        self._tokens += self._collator.real_tokens.popleft()
        done = self._steps - self._spec["warmup"]
        if done < 0 or done % self._spec["updates"]:
            return control
        device = self._spec["device"]
        if done:
            seconds, peak = read_clock(device) - self._began, read_peak_memory_mb(device)
            self._session.report([Sample(seconds, seconds, self._tokens, {"peak_mb": peak})])
        else:
            read_peak_memory_mb(device)
        control.should_training_stop = not self._session.next_round()
        self._tokens, self._began = 0.0, read_clock(device)
        return control


def train(spec: dict[str, Any], session: Session) -> None:
    """Measure Trainer; settings: attention (sdpa, flash_attention_2, eager), compile, padded."""
    case, settings, device = GpuCase(**spec["case"]), spec["settings"], spec["device"]
    updates = spec["warmup"] + spec["updates"] * spec["rounds"]
    sequences = read_sequences(HeldRows(case), case.sequences * min(updates, DISTINCT_BATCHES), SEED)
    collator = Collator(case.task, case.row_length if settings["padded"] else None, MULTIPLE)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=case.sequences,
            max_steps=updates,
            bf16=case.precision == "bf16",
            seed=SEED,
            optim="adamw_torch_fused",
            torch_compile=settings["compile"],
            learning_rate=OPTIMIZER.learning_rate,
            weight_decay=OPTIMIZER.weight_decay,
            adam_epsilon=OPTIMIZER.eps,
            max_grad_norm=OPTIMIZER.max_grad_norm or 0.0,
            warmup_steps=round(updates * WARMUP_FRACTION),
            train_sampling_strategy="random" if settings["padded"] else "group_by_length",
            use_cpu=device == CPU,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        measured = Rounds(spec, session, collator)
        config = make_config(case.model, num_labels=CLASSES, attn_implementation=settings["attention"])
        model = MODELS[case.task](config)
        Trainer(model, arguments, train_dataset=sequences, data_collator=collator, callbacks=[measured]).train()
