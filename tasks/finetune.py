"""Stage finetune: the pre-trained model and packed questions in, a question-answering model out.

python -m tasks.finetune
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tasks import artifacts
from tasks.device_job import BatchGeometry, Job, OptimizerConfig, ScheduleConfig
from tasks.errors import run_main
from tasks.params import PHASES, DeviceParams, FinetuneParams, load_params
from tasks.training import require_verdict, summary, train

ROWS = "squad-train"


def finetune_job(params: FinetuneParams, device: DeviceParams, root: Path = Path()) -> Job:
    """The device job of fine-tuning, its run folder still to be chosen."""
    return Job(
        kind="finetune",
        head="question_answering",
        rows=str(root / artifacts.rows_folder(ROWS)),
        output=str(root / artifacts.SQUAD_MODEL),
        run_folder="",
        geometry=BatchGeometry(params.global_batch_size, device.micro_batch_size),
        runtime=device.runtime,
        precision=device.precision,
        seed=params.seed,
        init_checkpoint=str(root / artifacts.MODELS / PHASES[-1]),
        optimizer=OptimizerConfig(
            name=params.optimizer,
            learning_rate=params.learning_rate,
            weight_decay=params.weight_decay,
            max_grad_norm=params.max_grad_norm,
        ),
        schedule=ScheduleConfig(epochs=params.epochs, warmup_fraction=params.warmup_fraction),
        checkpoint_every_updates=params.checkpoint_every_updates,
    )


def main() -> None:
    argparse.ArgumentParser(description="Fine-tune on the packed questions.").parse_args()
    params = load_params()
    require_verdict(ROWS)
    result = train(finetune_job(params.finetune, params.device), "finetune")
    sys.stdout.write(summary("finetune", result) + "\n")


if __name__ == "__main__":
    run_main(main)
