"""Documents to make pairs of."""

import random
from pathlib import Path

import numpy as np
import torch

from ipu_model.distributed.process import StopRequest, lock_run_folder
from ipu_model.jobs.job import Job, JobResult
from ipu_model.train.job_runner import run_job
from tasks.params.overlays import resolve
from tasks.params.schema import Params, validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.pretraining.rows.pair_rows import TokenizedDocuments
from tests.places import ROOT


def documents_of(sentence_lengths: list[list[int]]) -> TokenizedDocuments:
    """Documents whose tokens are 0, 1, 2, ...: a token names its own place."""
    flat = [length for document in sentence_lengths for length in document]
    return TokenizedDocuments(
        np.arange(sum(flat)),
        [0, *np.cumsum(flat).tolist()],
        [0, *np.cumsum([len(document) for document in sentence_lengths]).tolist()],
    )


def random_documents(seed: int, count: int, longest: int = 40) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randint(1, longest) for _ in range(draw.randint(1, 30))] for _ in range(count)]


SMALL = (
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "model.num_layers=1",
    "model.num_heads=2",
    "pretrain_rows.held_out_fraction=0.1",
    "pretrain_rows.phase1.row_length=48",
    "pretrain.phase1.steps=25",
    "pretrain.phase1.global_batch_size=16",
    "pretrain.evaluate_every_updates=10",
    "pretrain.evaluate_rows=20",
    "downstream.squad.rows.row_length=64",
    "downstream.squad.rows.max_question_length=16",
    "downstream.squad.rows.doc_stride=8",
    "downstream.squad.rows.held_out_fraction=0.2",
    "downstream.squad.finetune.epochs=6.0",
    "downstream.squad.finetune.global_batch_size=16",
    "downstream.squad.finetune.evaluate_every_updates=4",
    "downstream.squad.finetune.keep=best",
    "downstream.squad.finetune.patience=3",
    "downstream.squad.finetune.learning_rate=0.01",
)


def params_with(*overrides: str) -> Params:
    return validate_params(resolve(read_yaml(ROOT / "params.yaml"), None, list(overrides)))


def in_this_process(job: Job, **_: object) -> JobResult:
    torch.set_num_threads(1)  # more would wait for one another on a busy machine
    with lock_run_folder(Path(job.run_folder)):
        return run_job(job, lambda event, **fields: None, StopRequest())
