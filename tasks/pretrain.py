"""Stage pretrain@phase1, pretrain@phase2: rows in, a BERT with its pre-training heads out.

    python -m tasks.pretrain phase1|phase2

Phase 2 starts from phase 1's weights with a new optimizer and schedule. With `pretrain.enabled: false`
both phases make no update: the model passes through as it was initialised.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tasks import artifacts
from tasks.device_job import BatchGeometry, Job, OptimizerConfig, ScheduleConfig
from tasks.errors import run_main
from tasks.params import PHASES, DeviceParams, ModelParams, PretrainParams, load_params
from tasks.rows import read_manifest
from tasks.training import model_config, require_verdict, summary, train


def pretrain_job(
    phase: str, params: PretrainParams, model: ModelParams, device: DeviceParams, root: Path = Path()
) -> Job:
    """The device job of one phase, its run folder still to be chosen."""
    settings = params.phase1 if phase == "phase1" else params.phase2
    rows = root / artifacts.rows_folder(phase)
    first = phase == PHASES[0]
    return Job(
        kind="pretrain",
        head="pretraining",
        rows=str(rows),
        output=str(root / artifacts.MODELS / phase),
        run_folder="",
        geometry=BatchGeometry(settings.global_batch_size, device.micro_batch_size),
        runtime=device.runtime,
        precision=device.precision,
        seed=params.seed,
        model=model_config(model, read_manifest(rows)) if first else None,
        init_checkpoint=None if first else str(root / artifacts.MODELS / PHASES[0]),
        optimizer=OptimizerConfig(
            name=params.optimizer,
            learning_rate=settings.learning_rate,
            weight_decay=params.weight_decay,
            max_grad_norm=params.max_grad_norm,
        ),
        schedule=ScheduleConfig(
            steps=settings.steps if params.enabled else 0, warmup_fraction=settings.warmup_fraction
        ),
        checkpoint_every_updates=params.checkpoint_every_updates,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Pre-train one phase (MLM and next-sentence prediction).")
    parser.add_argument("phase", choices=PHASES)
    phase = parser.parse_args().phase
    params = load_params()
    require_verdict(phase)
    result = train(pretrain_job(phase, params.pretrain, params.model, params.device), f"pretrain-{phase}")
    sys.stdout.write(summary(f"pretrain {phase}", result) + "\n")


if __name__ == "__main__":
    run_main(main)
