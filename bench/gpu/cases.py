"""Models and rows for measurements on a GPU. Rows are generated: no file and no network is needed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.flops import TRAINING, answering_flops, encoder_flops, pretraining_flops
from bench.setup import DROPOUT, OPTIMIZER, SEED, VOCABULARY, WARMUP_FRACTION
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest
from ipu_model.rows.row_folder import Batch
from ipu_model.train.measurement import GeneratedRows

CPU, CUDA = "cpu", "cuda"
SIZES: dict[str, dict[str, Any]] = {
    "test": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32},
    "minilm": {"num_layers": 6, "hidden_size": 384, "num_heads": 12, "intermediate_size": 1536},
    "base": {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "intermediate_size": 3072},
    "large": {"num_layers": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096},
}
CLASSES = 2
HELD_ROWS = 2048
"""Rows that are generated once and then drawn from, so that generating them is not measured."""
TASKS = {"pretraining": "pretrain", "question_answering": "squad", "sequence_classification": "classification"}
"""Head -> task of the peer (peer_data.LABELS)."""


@dataclass(frozen=True)
class GpuCase:
    """One training; both sides have the same sequences and settings."""

    name: str
    head: str
    size: str
    row_length: int
    packing_factor: float
    """Sequences of a row, on average."""
    fill: float
    """Share of real tokens in the rows."""
    sequences: int
    """Per update."""
    precision: str = "bf16"
    dropout: float = DROPOUT
    goal: float | None = None
    """Ratio to the peer that the project aims at."""

    @property
    def model(self) -> ModelConfig:
        """Architecture, with random weights."""
        vocabulary = 60 if self.size == "test" else VOCABULARY
        dropouts: dict[str, Any] = {"hidden_dropout": self.dropout, "attention_dropout": self.dropout}
        return ModelConfig(vocabulary, max_positions=512, **SIZES[self.size], **dropouts)

    @property
    def task(self) -> str:
        """Task of the peer."""
        return TASKS[self.head]

    @property
    def labels(self) -> list[str] | None:
        """Names of the classes, for heads that have some."""
        return [str(number) for number in range(CLASSES)] if "classification" in self.head else None

    @property
    def manifest(self) -> Manifest:
        """Manifest of the generated rows."""
        masked = self.head == "pretraining"
        rows = HELD_ROWS if self.size != "test" else 64
        return Manifest(
            kind="pretrain" if masked else self.head,
            row_length=self.row_length,
            max_sequences=max(2, round(2 * self.packing_factor)),
            max_predictions=round(0.15 * self.row_length) if masked else 0,
            vocab_size=self.model.vocab_size,
            tokenizer_sha256="0" * 64,
            seed=SEED,
            rows=rows,
            sequences=round(rows * self.packing_factor),
            real_tokens=round(rows * self.row_length * self.fill),
            files={"generated": rows},
            num_labels=CLASSES if "classification" in self.head else 0,
            mask_id=4 if masked else None,
            special_ids=[0, 1, 2, 3, 4] if masked else None,
        )

    def make_job(self, device: str, updates: int, **settings: Any) -> Job:
        """Return the job of this training on a device; all rows of an update are one micro-batch."""
        job = Job(
            kind="pretrain" if self.head == "pretraining" else "finetune",
            head=self.head,
            rows="",
            output="",
            run_folder="",
            geometry=BatchGeometry(self.sequences, micro_batch_size=self.sequences),
            runtime=device,
            precision=self.precision,
            seed=SEED,
            model=self.model,
            optimizer=OPTIMIZER,
            schedule=ScheduleConfig(steps=updates, warmup_fraction=WARMUP_FRACTION),
            labels=self.labels,
        )
        return dataclasses.replace(job, **settings)

    def count_flops(self, lengths: list[int], masked: int) -> int:
        """Return the operations of one update over sequences of these lengths (flops.py)."""
        if self.head == "pretraining":
            return pretraining_flops(self.model, lengths, masked)
        if self.head == "question_answering":
            return answering_flops(self.model, lengths)
        return TRAINING * encoder_flops(self.model, lengths)


class HeldRows(GeneratedRows):
    """Generated rows that are made once."""

    def __init__(self, case: GpuCase) -> None:
        super().__init__(case.manifest, case.model)
        self._held = super().take(np.arange(self.manifest.rows))

    def take(self, rows: np.ndarray, epochs: np.ndarray | None = None) -> Batch:
        """Return the rows with these numbers."""
        numbers = np.asarray(rows, dtype=np.int64)
        return Batch(numbers, {name: values[numbers] for name, values in self._held.columns.items()})


CASES = (
    GpuCase("pretrain base 128", "pretraining", "base", 128, 1.15, 0.97, 512, goal=1.5),
    GpuCase("SQuAD base 384", "question_answering", "base", 384, 2.1, 0.95, 128, goal=2.0),
    GpuCase("pretrain base 512", "pretraining", "base", 512, 1.15, 0.97, 128, goal=1.5),
    GpuCase("pretrain large 128", "pretraining", "large", 128, 1.15, 0.97, 256, goal=1.3),
    GpuCase("classification MiniLM 128", "sequence_classification", "minilm", 128, 4.5, 0.95, 512),
    GpuCase("pretrain large 512", "pretraining", "large", 512, 1.15, 0.97, 64, goal=1.3),
    GpuCase("SQuAD large 384", "question_answering", "large", 384, 2.1, 0.95, 64),
)
"""In the order in which they are measured: the most telling first."""
TEST_CASES = (
    GpuCase("pretrain test 24", "pretraining", "test", 24, 1.15, 0.97, 8, precision="fp32"),
    GpuCase("SQuAD test 24", "question_answering", "test", 24, 2.1, 0.95, 8, precision="fp32"),
    GpuCase("classification test 24", "sequence_classification", "test", 24, 2.1, 0.95, 8, precision="fp32"),
)
"""For the command's own test on a CPU."""
