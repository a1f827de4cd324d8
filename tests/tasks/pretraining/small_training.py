"""Parameters of a small training that runs in the process of its test, and documents to make sequences of."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from ipu_model.core.files import read_json
from ipu_model.distributed.process import StopRequest, lock_run_folder
from ipu_model.train.job_runner import run_job
from tasks.jobs import training
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.pretraining.rows.pair_rows import TokenizedDocuments
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.stage import artifacts
from tests.plans import params_of
from tests.tasks.pretraining.row_inputs import word_tokenizer, write_corpus


def documents_of(sentence_lengths):
    """Documents whose tokens are 0, 1, 2, ...: a token names its own place."""
    ends = np.cumsum([length for document in sentence_lengths for length in document]).tolist()
    sentences = np.cumsum([len(document) for document in sentence_lengths]).tolist()
    return TokenizedDocuments(np.arange(ends[-1]), [0, *ends], [0, *sentences])


SMALL = (
    *("model.hidden_size=32", "model.intermediate_size=64", "model.num_layers=1", "model.num_heads=2"),
    *("pretrain_rows.held_out_fraction=0.1", "pretrain_rows.phase1.row_length=48"),
    *("pretrain.phase1.steps=25", "pretrain.phase1.global_batch_size=16"),
    *("pretrain.evaluate_every_updates=10", "pretrain.evaluate_rows=20"),
    "downstream.squad.rows={row_length: 64, max_question_length: 16, doc_stride: 8, held_out_fraction: 0.2}",
    "downstream.squad.finetune={epochs: 6.0, global_batch_size: 16, learning_rate: 0.01}",
    "downstream.squad.finetune={evaluate_every_updates: 4, keep: best, patience: 3}",
)
params_with = functools.partial(params_of, None)


def make_rows(root, params, texts, phase="phase1"):
    """Rows of a phase in a checkout, and the job that trains on them."""
    tokenizer, rows = word_tokenizer(root / artifacts.TOKENIZER), root / artifacts.rows_folder(phase)
    write_pretrain_rows(params.pretrain_rows, phase, write_corpus(root / "corpus", texts), tokenizer, rows, 1)
    return make_pretrain_job(phase, params, root), rows


def train_here(job, name, root):
    """Train in this process; the result, and the metrics."""

    def run_device_job(job, **_):
        torch.set_num_threads(1)  # more would wait for one another on a busy machine
        with lock_run_folder(Path(job.run_folder)):
            return run_job(job, lambda event, **fields: None, StopRequest())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "run_device_job", run_device_job)
        result = training.train(job, name, root)
    return result, read_json(root / f"metrics/{name}.json")
