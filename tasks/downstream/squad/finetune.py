"""Stage finetune: the pre-trained model and packed questions in, a question-answering model out.

python -m tasks.downstream.squad.finetune
"""

from __future__ import annotations

import sys
from pathlib import Path

from tasks.host.launcher import launch_words
from tasks.jobs.device_job import Job, ModelConfig, ScheduleConfig
from tasks.jobs.training import (
    carried_executables,
    evaluation,
    geometry,
    ipu_config,
    model_config,
    optimizer_config,
    require_verdict,
    summary,
    train,
)
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.main import run_main
from tasks.project.params import PHASES, DeviceParams, FinetuneParams, IpuParams, ModelParams, load_params
from tasks.project.process import takes_no_words
from tasks.reading.row_folders import read_manifest

ROWS = "squad-train"


def finetune_job(
    params: FinetuneParams,
    model: ModelParams,
    device: DeviceParams,
    ipu: IpuParams,
    root: Path = Path(),
    *,
    base: bool = False,
    untrained: bool = False,
) -> Job:
    """The device job of fine-tuning, its run folder still to be chosen.

    Args:
        params: section `finetune`.
        model: section `model`, which the pre-trained model was made from.
        device: section `device`.
        ipu: section `ipu`.
        root: the checkout.
        base: start from the model that stage base_model took in, as nothing was pre-trained.
        untrained: start from fresh weights, so that the job can be compiled before pre-training has run.
    """
    rows = root / artifacts.rows_folder(ROWS)
    return Job(
        kind="finetune",
        head="question_answering",
        rows=str(rows),
        output=str(root / artifacts.SQUAD_MODEL),
        run_folder="",
        geometry=geometry(params, device),
        runtime=device.runtime,
        precision=device.precision,
        compile=device.compile,
        seed=params.seed,
        model=own_model(params, model, rows, untrained or base),
        init_checkpoint=None
        if untrained
        else str(root / (artifacts.BASE_MODEL if base else artifacts.MODELS / PHASES[-1])),
        optimizer=optimizer_config(params, params),
        schedule=ScheduleConfig(epochs=params.epochs, warmup_fraction=params.warmup_fraction, shape=params.schedule),
        checkpoint_every_updates=params.checkpoint_every_updates,
        evaluation=evaluation(rows, params.evaluate_every_updates, keep=params.keep, patience=params.patience),
        ipu_config=ipu_config(ipu, "finetune", device, root),
        executables=carried_executables("finetune", device, root),
    )


def own_model(params: FinetuneParams, model: ModelParams, rows: Path, whole: bool) -> ModelConfig | None:
    """The architecture where fine-tuning states other dropout than pre-training had, or `whole` asks for it; else None,
    that of its weights."""
    stated = {"hidden_dropout": params.hidden_dropout, "attention_dropout": params.attention_dropout}
    changed = {name: value for name, value in stated.items() if value is not None}
    if not changed and not whole:
        return None
    return model_config(model.model_copy(update=changed), read_manifest(rows))


def main() -> None:
    takes_no_words("Stage finetune: the pre-trained model and packed questions in, a question-answering model out.")
    params = load_params()
    require_verdict(ROWS)
    base = params.base_model.source != "none" and not params.pretrain.enabled
    job = finetune_job(params.finetune, params.model, params.device, params.ipu, base=base)
    if job.evaluation is None and params.finetune.evaluate_every_updates is not None:
        raise InputError(
            f"{job.rows} has no held-out rows, which finetune.evaluate_every_updates needs: set "
            "squad_rows.held_out_fraction and run `dvc repro squad_rows@train`"
        )
    launcher = launch_words(job, params.device)
    result = train(job, "finetune", launcher=launcher, remote=params.checkpoint.remote, tracking=params.tracking)
    sys.stdout.write(summary("finetune", result) + "\n")


if __name__ == "__main__":
    run_main(main)
