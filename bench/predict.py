"""Start and end logits of all development features: our predict including its file, and padded Trainer.predict."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from bench.protocol import Session, Stopwatch
from bench.setup import SEED, Training


def measure_ours(spec: dict[str, Any], session: Session) -> None:
    """Measure a pass over all rows per round; units are features."""
    from bench.ours import describe_precision, make_job, prepare_host, say_nothing, start_runtime
    from ipu_model.distributed.process import StopRequest
    from ipu_model.jobs.job import Job
    from ipu_model.rows.row_folder import RowFolder
    from ipu_model.train.job_runner import predict

    prepare_host(spec["threads"])
    training = Training.from_spec(spec)
    rows = RowFolder(Path(training.rows), training.row_kind, training.model)
    values = json.loads(make_job(training, 1, spec["settings"]).to_json())
    job = Job.from_json(json.dumps({**values, "kind": "predict", "optimizer": None, "schedule": None}))
    runtime, plan = start_runtime(job, rows)
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:

        def once() -> int:
            return predict(
                runtime, rows, job.head, plan.rows_per_call, Path(folder, "logits"), say_nothing, StopRequest()
            ).sequences

        for _ in range(spec["warmup"]):
            once()
        while session.next_round(**describe_precision(plan), rows_per_call=plan.rows_per_call):
            watch.start()
            features = once()
            session.report([watch.sample(features)])


def measure_peer(spec: dict[str, Any], session: Session) -> None:
    """Measure the same features with Trainer.predict; settings: precision, padding, batch (8 is run_qa's default)."""
    import numpy as np
    import torch
    from transformers import Trainer, TrainingArguments

    from bench.peer import make_model, quiet_arguments
    from bench.peer_data import Collator, Sequences, split_batch
    from ipu_model.rows.row_folder import RowFolder

    torch.set_num_threads(spec["threads"])
    training, settings = Training.from_spec(spec), spec["settings"]
    rows = RowFolder(Path(training.rows), training.row_kind, training.model)
    items = sorted(split_batch(rows.take(np.arange(len(rows)))), key=lambda item: item["feature_id"])
    for item in items:
        del item["start_positions"], item["end_positions"]
    padded_to = rows.manifest.row_length if settings.get("padding", "max") == "max" else None
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            make_model(training),
            TrainingArguments(
                folder,
                per_device_eval_batch_size=settings["batch"],
                bf16=settings["precision"] == "bf16",
                seed=SEED,
                **quiet_arguments(),
            ),
            data_collator=Collator("predict", padded_to),
        )
        trainer.predict(Sequences(items[: settings["batch"] * 2]))
        while session.next_round():
            watch.start()
            found = trainer.predict(Sequences(items))
            session.report([watch.sample(len(found.predictions[0]))])
