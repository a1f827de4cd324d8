"""Three updates of every head and family on the device compared with the CPU, without dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.gpu.cases import CLASSES, CPU
from bench.ours import start_runtime
from bench.setup import OPTIMIZER, SEED
from ipu_model import heads
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.models import families
from ipu_model.models.config import ModelConfig
from ipu_model.models.head import JointHead
from ipu_model.rows.format import Manifest
from ipu_model.train.measurement import GeneratedRows

UPDATES, ROWS, LENGTH, VOCABULARY = 3, 8, 64, 200
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-2}
"""Maximum difference of losses, relative; in fp32 also of weights, absolute."""


def list_pairs() -> Iterator[tuple[str, str]]:
    """Yield head and family of all models that Podium computes itself; one family is enough for the other heads."""
    for head in heads.list_heads():
        for family in families.list_families():
            if not heads.get_head(head).pretrains or family == "bert" or head == "masked_lm":
                yield head, family


def compare(head: str, family: str, device: str, precision: str) -> dict[str, Any]:
    """Return the largest differences of the losses and weights of two trainings."""
    sizes = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128, "max_positions": LENGTH}
    config = families.configure_model(VOCABULARY, family, **sizes)
    config = dataclasses.replace(config, hidden_dropout=0.0, attention_dropout=0.0)
    rows = GeneratedRows(make_manifest(head, config), config)
    there, here = (train(head, config, rows, *one) for one in ((device, precision), (CPU, "fp32")))
    losses = max(abs(a - b) / max(1e-6, abs(b)) for a, b in zip(there[0], here[0], strict=True))
    weights = max(float((there[1][name] - value).abs().max()) for name, value in here[1].items())
    within = losses <= TOLERANCE[precision] and (precision != "fp32" or weights <= TOLERANCE[precision])
    return {
        "head": head,
        "family": family,
        "precision": precision,
        "losses": losses,
        "weights": weights,
        "equal": bool(within),
    }


def make_manifest(head: str, config: ModelConfig) -> Manifest:
    """Return the manifest of generated rows for a head."""
    labels = CLASSES if heads.get_head(head).labelled else 0
    kind = heads.get_head(head).row_kinds(labels)[0]
    masked, joint = "mask" in kind or kind == "pretrain", isinstance(heads.get_head(head), JointHead)
    return Manifest(
        kind=kind,
        row_length=LENGTH,
        max_sequences=2 if joint else 4,
        unit=2 if joint else 1,
        max_predictions=8 if masked else 0,
        vocab_size=config.vocab_size,
        tokenizer_sha256="0" * 64,
        seed=SEED,
        rows=4 * ROWS,
        sequences=8 * ROWS,
        real_tokens=4 * ROWS * LENGTH * 3 // 4,
        files={"generated": 4 * ROWS},
        num_labels=labels,
        pad_id=config.pad_id,
        mask_id=4 if masked else None,
        special_ids=[0, 1, 2, 3, 4] if masked else None,
    )


def train(
    head: str, config: ModelConfig, rows: GeneratedRows, device: str, precision: str
) -> tuple[list[float], dict[str, Any]]:
    """Return the losses of three updates, and the weights after them, on the host."""
    chosen = heads.get_head(head)
    job = Job(
        kind="pretrain" if chosen.pretrains else "finetune",
        head=head,
        rows="",
        output="",
        run_folder="",
        geometry=BatchGeometry(2 * ROWS, micro_batch_size=ROWS),
        runtime=device,
        precision=precision,
        seed=SEED,
        model=config,
        compile="none",
        optimizer=dataclasses.replace(OPTIMIZER, learning_rate=1e-3),
        schedule=ScheduleConfig(steps=UPDATES),
        labels=[str(number) for number in range(CLASSES)] if chosen.labelled else None,
    )
    runtime, plan = start_runtime(job, rows)
    steps = range(UPDATES)
    losses = [
        runtime.train_step(rows.take(np.arange(plan.rows_per_update) + step * plan.rows_per_update), 1e-3).loss
        for step in steps
    ]
    weights = {name: value.float().cpu() for name, value in runtime.state_dict().items()}
    runtime.close()
    return losses, weights
