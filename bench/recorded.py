"""A training of a run beside Trainer: the same rows, architecture and batch, for every encoder that both train."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.cases import Case
from bench.protocol import Session
from bench.setup import WARMUP_FRACTION
from bench.variants import RECORDED
from ipu_model import heads
from ipu_model.jobs.job import Job, ScheduleConfig
from ipu_model.rows.row_folder import RowFolder
from ipu_model.train.preparation import read_inputs

TASKS = {
    "ForMaskedLM": "masked_lm",
    "ForPreTraining": "pretrain",
    "ForQuestionAnswering": "squad",
    "ForSequenceClassification": "classification",
}
"""End of a class of transformers -> task of the peer."""


def make_case(job: Path, sequences: int | None) -> Case:
    """Return the case of a finished job of a run, named by its runs/.../job.json.

    Args:
        sequences: sequences per update; None: as recorded.
    """
    inputs = {"job": str(job.resolve()), "sequences": sequences}
    what = ("recorded", f"{job.parent.parent.name} of {job.resolve().parents[3].name}", "real tokens")
    return Case(*what, RECORDED, inputs, updates=5, rounds=3, seconds=600, threads=(1,))


def train_ours(spec: dict[str, Any], session: Session) -> None:
    """Measure updates of our runtime, including reading the rows; units are real tokens."""
    from bench.ours import prepare_host, run_updates, start_runtime

    prepare_host(spec["threads"])
    with _inputs(spec) as (job, base, rows):
        run_updates(spec, session, rows, *start_runtime(job, rows, base))


def train_peer(spec: dict[str, Any], session: Session) -> None:
    """Measure updates of Trainer, on transformers' model of the same architecture; settings as in bench.peer."""
    import transformers

    from bench.peer import padded_length, run_trainer
    from bench.peer_data import Collator

    suffix = heads.get_head(_read(spec).head).suffix
    with _inputs(spec) as (job, _, rows):
        model = getattr(transformers, f"AutoModel{suffix}").from_pretrained(job.output)
        types = "token_type_ids" in inspect.signature(model.forward).parameters
        collator = Collator(TASKS[suffix], padded_length(spec, rows), pad_id=rows.manifest.pad_id, types=types)
        run_trainer(spec, session, rows, job.geometry.global_batch_size, model, collator)


def _read(spec: dict[str, Any]) -> Job:
    job = Job.from_json(Path(spec["job"]).read_text(encoding="utf-8"))
    geometry = job.geometry
    if spec["sequences"] is not None:
        geometry = dataclasses.replace(geometry, global_batch_size=spec["sequences"])
    updates = spec["updates"] * spec["rounds"] + spec["warmup"]
    return dataclasses.replace(
        job,
        runtime="cpu",
        precision=spec["settings"]["precision"],
        geometry=geometry,
        schedule=ScheduleConfig(steps=updates, warmup_fraction=WARMUP_FRACTION),
    )


@contextlib.contextmanager
def _inputs(spec: dict[str, Any]) -> Iterator[tuple[Job, Any, RowFolder]]:
    """Yield the job with its architecture, the model it starts from, and its rows, in the folder of its run."""
    with contextlib.chdir(Path(spec["job"]).parents[3]):
        job, base, config, rows = read_inputs(_read(spec), "cpu")
        yield dataclasses.replace(job, model=config), base, rows
