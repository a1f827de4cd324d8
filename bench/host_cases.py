"""The configurations of bench.host_estimates: what is trained, on rows of which length, and how.

The first and the last of every four are what the constants of ipu_model/estimates/host_constants.py were fitted on; the
others judge them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data import Data, make_data, params_for
from bench.setup import DROPOUT, OPTIMIZER, SEED, SIZES, VOCABULARY
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, Job, ScheduleConfig
from ipu_model.models.config import ModelConfig
from tasks.downstream.entries import entry_of
from tasks.downstream.rows import write_rows
from tasks.downstream.task import part_of

MORE_SIZES = {
    **SIZES,
    "mini": {"num_layers": 4, "hidden_size": 256, "num_heads": 4, "intermediate_size": 1024},
    "small": {"num_layers": 4, "hidden_size": 512, "num_heads": 8, "intermediate_size": 2048},
    "medium": {"num_layers": 8, "hidden_size": 512, "num_heads": 8, "intermediate_size": 2048},
}
"""Beside those of bench.setup the sizes between tiny and base of Turc et al. (arXiv 1908.08962, table 1)."""
PRETRAIN, SQUAD = "pretrain", "squad"


@dataclass(frozen=True)
class Configuration:
    """One training of few updates."""

    task: str
    """PRETRAIN or SQUAD."""
    size: str
    row_length: int
    micro_batch: int
    optimizer: str
    precision: str
    updates: int
    accumulation: int = 1
    recompute: bool = False
    evaluates: bool = False
    """Once, after the last update, the best weights kept."""
    checkpoints: bool = False
    """Every second update."""

    @property
    def name(self) -> str:
        """For people, and the key under which it is kept."""
        words = [self.task, self.size, f"{self.row_length}", f"{self.micro_batch} x {self.accumulation}"]
        words += [self.optimizer, self.precision]
        return ", ".join(words + [word for word in ("recompute", "evaluates", "checkpoints") if getattr(self, word)])

    @property
    def cost(self) -> float:
        """What orders configurations by the time that they take: tokens times weights of the layers."""
        tokens = self.updates * self.accumulation * self.micro_batch * self.row_length
        return float(tokens * self.model.num_layers * self.model.hidden_size**2)

    @property
    def model(self) -> ModelConfig:
        """The architecture."""
        return ModelConfig(VOCABULARY, hidden_dropout=DROPOUT, attention_dropout=DROPOUT, **MORE_SIZES[self.size])

    def job(self, rows: Path, sequences_of_row: float, folder: Path) -> Job:
        """The job over these rows, which writes into `folder`."""
        sequences = round(self.micro_batch * self.accumulation * sequences_of_row)
        more: dict[str, Any] = {"checkpoint_every_updates": 2} if self.checkpoints else {}
        if self.evaluates:
            held_out = EvaluationConfig(str(rows), self.updates, max_rows=2 * self.micro_batch, keep="best")
            more["evaluation"] = held_out
        return Job(
            kind="pretrain" if self.task == PRETRAIN else "finetune",
            head="pretraining" if self.task == PRETRAIN else "question_answering",
            rows=str(rows),
            output=str(folder / "model"),
            run_folder=str(folder / "run"),
            geometry=BatchGeometry(sequences, self.micro_batch),
            runtime="cpu",
            precision=self.precision,
            seed=SEED,
            model=self.model,
            optimizer=dataclasses.replace(OPTIMIZER, name=self.optimizer),
            schedule=ScheduleConfig(steps=self.updates),
            recompute=self.recompute,
            log_every_updates=1,
            **more,
        )


def _of(task: str, *lines: tuple[Any, ...], **more: Any) -> list[Configuration]:
    return [Configuration(task, *line, **more) for line in lines]


CONFIGURATIONS: list[Configuration] = [
    *_of(
        PRETRAIN,
        ("tiny", 128, 32, "adamw", "fp32", 12),
        ("tiny", 128, 32, "adamw", "bf16", 30),
        ("tiny", 512, 8, "adamw", "fp32", 12),
        ("tiny", 64, 128, "lamb", "bf16", 24),
        ("mini", 128, 32, "adamw", "fp32", 8),
        ("mini", 256, 16, "lamb", "bf16", 20),
        ("mini", 512, 16, "adamw", "fp32", 5),
        ("mini", 128, 128, "adamw", "bf16", 8),
        ("small", 128, 32, "adamw", "fp32", 3),
        ("small", 512, 4, "lamb", "fp32", 3),
        ("medium", 128, 8, "adamw", "fp32", 3),
        ("base", 128, 8, "adamw", "bf16", 4),
        ("base", 128, 4, "adamw", "fp32", 3),
        ("base", 512, 2, "lamb", "bf16", 4),
    ),
    *_of(
        PRETRAIN,
        ("tiny", 128, 64, "lamb", "fp32", 4),
        ("small", 128, 16, "lamb", "bf16", 8),
        accumulation=2,
    ),
    *_of(PRETRAIN, ("mini", 256, 8, "lamb", "fp32", 4), ("small", 128, 16, "adamw", "bf16", 10), recompute=True),
    *_of(
        SQUAD,
        ("tiny", 384, 16, "adamw", "fp32", 6),
        ("tiny", 384, 64, "lamb", "bf16", 20),
        ("tiny", 128, 32, "lamb", "fp32", 6),
        ("mini", 384, 16, "adamw", "bf16", 20),
        ("mini", 512, 8, "adamw", "fp32", 4),
        ("small", 384, 8, "adamw", "fp32", 4),
        ("medium", 384, 6, "lamb", "bf16", 6),
        ("base", 384, 3, "adamw", "bf16", 4),
    ),
    *_of(SQUAD, ("small", 384, 6, "lamb", "bf16", 8), ("mini", 128, 32, "lamb", "fp32", 4), accumulation=2),
    *_of(PRETRAIN, ("tiny", 128, 32, "adamw", "fp32", 8), ("mini", 128, 32, "lamb", "fp32", 4), evaluates=True),
    *_of(SQUAD, ("small", 384, 6, "adamw", "bf16", 10), evaluates=True, checkpoints=True),
    *_of(SQUAD, ("base", 128, 4, "adamw", "fp32", 3), checkpoints=True),
    *_of(PRETRAIN, ("medium", 512, 2, "adamw", "bf16", 5), accumulation=2),
    *_of(PRETRAIN, ("medium", 256, 4, "lamb", "fp32", 3), recompute=True),
    *_of(PRETRAIN, ("base", 64, 8, "lamb", "fp32", 3)),
    *_of(SQUAD, ("base", 384, 2, "adamw", "fp32", 3), ("base", 128, 4, "lamb", "bf16", 3)),
]


def rows_of(data: Data, one: Configuration) -> Path:
    """The rows of a configuration, made when first asked for."""
    if one.task == PRETRAIN:
        return data.pretrain_rows(one.row_length)
    folder = data.folder / "rows" / f"squad-train-{one.row_length}"
    if not folder.exists():
        stride = f"downstream.squad.rows.doc_stride={one.row_length // 3}"
        stages = (*data.stages, f"downstream.squad.rows.row_length={one.row_length}", stride)
        task = part_of(entry_of(params_for(stages), "squad"), "rows")
        write_rows(task, "train", data.questions("train"), data.tokenizer, folder)
    return folder


def generated() -> Data:
    """Texts and questions of bench.generated."""
    return make_data(None, None)
