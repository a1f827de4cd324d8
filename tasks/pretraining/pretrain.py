"""Stages pretrain@PHASE: train a BERT with its pre-training head on rows.

    python -m tasks.pretraining.pretrain PHASE

Phase 1 starts from the base model or from random weights; phase 2 from the weights of phase 1, with a new optimizer and
schedule.
"""

import argparse
import dataclasses
import shutil
import sys
from pathlib import Path

from tasks.host.launcher import launch_command
from tasks.jobs.device_job import Job
from tasks.jobs.device_job import preload as preload  # called by the fork server
from tasks.jobs.training import (
    carried_executables,
    evaluation,
    geometry,
    ipu_config,
    model_config,
    optimizer_config,
    require_verdict,
    schedule_config,
    summary,
    train,
)
from tasks.params.schema import Params, load_sections
from tasks.params.sections import PRETRAINING_HEADS
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.process import parse_item
from tasks.stage.row_folders import read_manifest
from tasks.stage.streams import note

HELD_OUT_NEEDS = "Set pretrain_rows.held_out_fraction above 0, and pass a text of two documents or more"


def make_pretrain_job(
    phase: str, params: Params, root: Path = Path(), *, base: bool = False, untrained: bool = False
) -> Job:
    """Return the device job of one phase, with an empty run folder.

    Args:
        base: the first phase starts from the model of stage base_model, and every phase is compared with it.
        untrained: only compile or estimate: every phase starts from random weights, and nothing is masked.
    """
    training, device = params.pretrain, params.device
    settings, before = training.get_phase(phase), training.phases[: training.phases.index(phase)]
    theta = training.find_theta(phase)
    rows = root / artifacts.rows_folder(phase)
    manifest = read_manifest(rows)
    start = artifacts.MODELS / before[-1] if before else artifacts.BASE_MODEL
    fresh = untrained or not (before or base)
    held_out = evaluation(rows, training.evaluate_every_updates, max_rows=training.evaluate_rows)
    compared = base and not untrained and held_out is not None
    return Job(
        kind="pretrain",
        head=PRETRAINING_HEADS[manifest.kind],
        rows=str(rows),
        output=str(root / artifacts.MODELS / phase),
        run_folder="",
        geometry=dataclasses.replace(geometry(settings, device), first_batch_size=settings.first_batch_size),
        runtime=device.runtime,
        precision=device.precision,
        compile=device.compile,
        recompute=device.recompute,
        seed=training.seed,
        masking="static" if untrained else training.masking,
        global_rope_theta=training.get_phase(theta).global_rope_theta if theta else None,
        model=None if before and not untrained else model_config(params.model, manifest),
        init_checkpoint=None if fresh else str(root / start),
        optimizer=optimizer_config(training, settings),
        schedule=schedule_config(settings, steps=settings.steps, batch_warmup_fraction=settings.batch_warmup_fraction),
        checkpoint_every_minutes=training.checkpoint_every_minutes,
        checkpoint_every_updates=training.checkpoint_every_updates,
        evaluation=held_out,
        original=str(root / artifacts.BASE_MODEL) if compared else None,
        ipu_config=ipu_config(params.ipu, params.ipu.get_phase(phase), device, root),
        executables=carried_executables(phase, device, root),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Pre-train one phase.")
    parser.add_argument("phase", type=parse_item)
    phase = parser.parse_args().phase
    params = load_sections("pretrain", "model", "base_model", "device", "ipu", "checkpoint", "tracking")
    require_verdict(phase)
    base = params.base_model.source != "none"
    job = make_pretrain_job(phase, params, base=base)
    if job.evaluation is None and params.pretrain.evaluate_every_updates is not None:
        note(f"{phase}: the text has no held-out documents, so the model is not evaluated. {HELD_OUT_NEEDS}")
    launcher = launch_command(job, params.device)
    result = train(
        job, f"pretrain-{phase}", launcher=launcher, remote=params.checkpoint.remote, tracking=params.tracking
    )
    for file in artifacts.TOKENIZER.iterdir():  # readers of a model folder expect its tokenizer there
        shutil.copyfile(file, Path(job.output) / file.name)
    sys.stdout.write(summary(f"pretrain {phase}", result) + "\n")


if __name__ == "__main__":
    run_main(main)
