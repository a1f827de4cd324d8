"""Hugging Face's side of bench.fine_tuning: Trainer on BertForQuestionAnswering, with data as in the run_qa example."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import AutoTokenizer, BertForQuestionAnswering, DataCollatorWithPadding, Trainer, TrainingArguments
from transformers.utils import logging

from bench.fine_tuning import ENTRY, FineTuningRecipe
from bench.host import peak_memory_mb
from bench.peer import quiet_arguments
from bench.run_qa import prepare_train_features
from tasks.downstream.squad.params import SquadRowsParams
from tasks.params.entries import find_entry
from tasks.params.schema import Params


def train(recipe: FineTuningRecipe, params: Params, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Fine-tune and save the model in `folder`.

    Settings: padding (max_length, longest), sampling (random, group_by_length), updates (stop there without saving).
    """
    disable_progress_bars()
    logging.disable_progress_bar()
    torch.set_num_threads(recipe.threads)
    tokenizer, updates = AutoTokenizer.from_pretrained(recipe.model), settings.get("updates")
    counting = Counting(DataCollatorWithPadding(tokenizer))
    model = BertForQuestionAnswering.from_pretrained(recipe.model)
    trainer = Trainer(
        model,
        make_arguments(recipe, params, folder, settings),
        train_dataset=make_features(params, folder, tokenizer, padded=settings["padding"] == "max_length"),
        data_collator=counting,
    )
    before = time.process_time()
    done = trainer.train()
    cpu = time.process_time() - before
    if updates is None:
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
    saved = None if updates else str(folder / "model")
    return {
        "training_cpu_seconds": cpu,
        "updates": done.global_step,
        "real_tokens": counting.real_tokens,
        "peak_memory_mb": peak_memory_mb(),
        "model": saved,
        "tokenizer": saved,
    }


def make_features(params: Params, folder: Path, tokenizer: Any, *, padded: bool) -> Dataset:
    """Return the windows of the training questions, as run_qa makes them."""
    rows = find_entry(params, ENTRY).rows
    assert isinstance(rows, SquadRowsParams)
    examples = Dataset.from_parquet(str(folder.parent / "examples/train.parquet"), cache_dir=str(folder / "cache"))
    shape = {"tokenizer": tokenizer, "row_length": rows.row_length, "doc_stride": rows.doc_stride, "pad": padded}
    return examples.map(prepare_train_features, batched=True, remove_columns=examples.column_names, fn_kwargs=shape)


def make_arguments(
    recipe: FineTuningRecipe, params: Params, folder: Path, settings: dict[str, Any]
) -> TrainingArguments:
    """Convert our recipe to Trainer's arguments."""
    tuning = find_entry(params, ENTRY).params.finetune
    return TrainingArguments(
        str(folder / "trainer"),
        per_device_train_batch_size=recipe.batch_size,
        num_train_epochs=recipe.epochs,
        max_steps=settings.get("updates") or -1,
        learning_rate=recipe.learning_rate,
        weight_decay=tuning.weight_decay,
        adam_beta1=tuning.beta1,
        adam_beta2=tuning.beta2,
        adam_epsilon=tuning.eps,
        max_grad_norm=tuning.max_grad_norm,
        warmup_steps=tuning.warmup_fraction,
        seed=recipe.seed,
        train_sampling_strategy=settings["sampling"],
        **quiet_arguments(),
    )


class Counting:
    """Collator that counts the real tokens of its batches."""

    def __init__(self, collate: DataCollatorWithPadding) -> None:
        self._collate = collate
        self.real_tokens = 0

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = self._collate(items)
        self.real_tokens += int(batch["attention_mask"].sum())
        return batch
