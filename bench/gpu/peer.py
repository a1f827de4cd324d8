"""The peer on a GPU: Hugging Face's Trainer with the same sequences, model size, optimizer and precision."""

from __future__ import annotations

import tempfile
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bench.gpu.cases import CLASSES, CPU, GpuCase, HeldRows
from bench.gpu.device import read_clock, read_peak_memory_mb
from bench.peer_data import Item, split_batch
from bench.protocol import Sample, Session
from bench.setup import OPTIMIZER, SEED, WARMUP_FRACTION
from ipu_model.rows.format import ABSENT, IGNORED
from ipu_model.rows.row_folder import RowFolder, UpdateRows

MODELS = {
    "pretraining": BertForPreTraining,
    "question_answering": BertForQuestionAnswering,
    "sequence_classification": BertForSequenceClassification,
}
VALUES = {
    "pretraining": ("next_sentence_label",),
    "question_answering": ("start_positions", "end_positions"),
    "sequence_classification": ("labels",),
}
"""Labels of a whole sequence, by head."""
DISTINCT_BATCHES = 64


class Sequences(Dataset[Item]):
    """Single sequences, with their lengths for grouping."""

    def __init__(self, items: list[Item]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Item:
        return self._items[index]


def split_rows(case: GpuCase, rows: RowFolder, count: int) -> list[Item]:
    """Return the first `count` sequences in the order of our training."""
    order, items, step = UpdateRows(len(rows), min(64, len(rows)), SEED), list[Item](), 0
    while len(items) < count:
        batch = rows.take(order(step))
        step += 1
        if case.head != "sequence_classification":
            items += split_batch(batch)
            continue
        columns = batch.columns
        for row, slot in np.argwhere(columns["cls_positions"] != ABSENT):
            here = np.flatnonzero(columns["sequence_ids"][row] == slot + 1)
            item = {name: columns[name][row, here].tolist() for name in ("input_ids", "token_type_ids")}
            items.append({**item, "labels": int(columns["class_labels"][row, slot])})
    return items[:count]


class Collator:
    """Collator that pads to the row length, or to the longest of the batch, and counts the real tokens."""

    def __init__(self, case: GpuCase, padded: bool) -> None:
        self._case, self._padded = case, padded
        self.real_tokens: deque[int] = deque()

    def __call__(self, items: list[Item]) -> dict[str, Tensor]:
        lengths = [len(item["input_ids"]) for item in items]
        self.real_tokens.append(sum(lengths))
        width = self._case.row_length if self._padded else -(-max(lengths) // 8) * 8
        fills = {"input_ids": 0, "token_type_ids": 0}
        if self._case.head == "pretraining":
            fills["labels"] = IGNORED
        batch = {name: torch.full((len(items), width), fill) for name, fill in fills.items()}
        batch["attention_mask"] = torch.zeros((len(items), width), dtype=torch.int64)
        for number, (item, length) in enumerate(zip(items, lengths, strict=True)):
            batch["attention_mask"][number, :length] = 1
            for name in fills:
                batch[name][number, :length] = torch.tensor(item[name])
        return batch | {name: torch.tensor([item[name] for item in items]) for name in VALUES[self._case.head]}


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
    items = split_rows(case, HeldRows(case), case.sequences * min(updates, DISTINCT_BATCHES))
    collator = Collator(case, settings["padded"])
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
        model = make_model(case, settings["attention"])
        Trainer(model, arguments, train_dataset=Sequences(items), data_collator=collator, callbacks=[measured]).train()


def make_model(case: GpuCase, attention: str) -> torch.nn.Module:
    """Make Hugging Face's model of a case with random weights."""
    config = case.model
    model: torch.nn.Module = MODELS[case.head](
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_positions,
            hidden_dropout_prob=config.hidden_dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            num_labels=CLASSES,
            attn_implementation=attention,
        )
    )
    return model
