"""Sentence embeddings compared with sentence-transformers: loss and gradients on equal embeddings, and training rates.

    python -m bench.embeddings CHECKOUT NAME [--updates N] [--batch N] [--micro-batch N] [--precision bf16] [--peer]

CHECKOUT is a run with an entry NAME of kind pairs: its rows, examples and base model are used. With --peer, updates of
sentence-transformers are measured instead, on the same examples: batches without duplicates, one thread. That package
is not among the pinned ones; the numbers are those of 6.2.0.
"""

import argparse
import importlib
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from ipu_model import heads
from ipu_model.jobs.job import OptimizerConfig
from ipu_model.models.model_folder import read_model
from ipu_model.models.modeling import build_model
from ipu_model.rows.row_folder import RowFolder, UpdateRows
from ipu_model.runtimes.host import keep_freed_memory
from ipu_model.runtimes.torch_device import TorchRuntime

HEAD = "sentence_embedding"


def compare_losses(pairs: int = 16, size: int = 32) -> str:
    """Return the largest differences of loss and gradients from sentence-transformers, on random embeddings."""
    package: Any = importlib.import_module("sentence_transformers.sentence_transformer.losses")
    head: Any = heads.get_head(HEAD)
    found = []
    for name, unit in (("MultipleNegativesRankingLoss", 2), ("MultipleNegativesRankingLoss", 3), ("CoSENTLoss", 2)):
        scored = name == "CoSENTLoss"
        generator = torch.Generator().manual_seed(unit)
        ours = torch.randn(pairs * unit, size, generator=generator).requires_grad_()
        theirs: list[Any] = [x.clone().requires_grad_() for x in _split(ours.detach(), unit)]
        targets = torch.rand(pairs, generator=generator) if scored else torch.full((pairs,), -100.0)
        labels = {
            "roles": torch.arange(pairs * unit) % unit,
            "texts": torch.arange(pairs * unit),
            "targets": targets.repeat_interleave(unit),
        }
        own = head.joint_loss(torch.nn.functional.normalize(ours, dim=1), labels)["ranking_loss"]
        loss: Any = getattr(package, name)(torch.nn.Identity(), scale=head.scale)
        other = loss.compute_loss_from_embeddings(theirs, targets if scored else None)
        own.backward()
        other.backward()
        apart = [(ours_of - x.grad).abs().max() for ours_of, x in zip(_split(ours.grad, unit), theirs, strict=True)]
        numbers = f"loss {float((own - other).detach().abs()):.1e}, gradients {float(max(apart)):.1e}"
        found.append(f"{name} of {unit} texts: {numbers}")
    return "\n".join(found)


def _split(values: Any, unit: int) -> list[Any]:
    return [values[role::unit] for role in range(unit)]


def measure_ours(root: Path, name: str, updates: int, batch: int, micro: int, precision: str) -> tuple[float, float]:
    """Return real tokens per second of CPU time, and of wall time, without the first update."""
    keep_freed_memory()  # as every job does
    base = read_model(root / "models/base")
    rows = RowFolder(root / f"data/rows/{name}/train", HEAD, base.config)
    model = build_model(HEAD, base.config)
    model.load_state_dict({key: base.state[key] for key in model.state_dict()})
    del base  # as a job, which frees what it has read
    optimizer = OptimizerConfig("adamw", 2e-5, 0.01, 0.9, 0.999, 1e-8, True, 1.0, 1.0, "auto")
    runtime, order = TorchRuntime(model, HEAD, micro, precision, optimizer, 42), UpdateRows(len(rows), batch, 42)
    tokens, began = 0, (0.0, 0.0)
    for step in range(updates + 1):
        made = runtime.train_step(rows.take(order(step)), 2e-5)
        if step:
            tokens += made.real_tokens
        else:
            began = time.process_time(), time.perf_counter()
    return tokens / (time.process_time() - began[0]), tokens / (time.perf_counter() - began[1])


def measure_peer(root: Path, name: str, updates: int, batch: int, precision: str) -> tuple[float, float]:
    """Return the same of sentence-transformers' trainer."""
    package: Any = importlib.import_module("sentence_transformers")
    losses: Any = importlib.import_module("sentence_transformers.sentence_transformer.losses")
    datasets: Any = importlib.import_module("datasets")
    callback: Any = importlib.import_module("transformers").TrainerCallback
    model = package.SentenceTransformer(str(root / f"models/{name}"), device="cpu")
    table = pq.read_table(root / f"data/examples/{name}/train.parquet", columns=["anchor", "positive"])
    marks: list[tuple[float, float]] = []
    mark = type("Mark", (callback,), {"on_step_end": lambda *a, **k: marks.append((time.process_time(), time.time()))})
    how = {"bf16": precision == "bf16", "use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    settings = package.SentenceTransformerTrainingArguments(
        output_dir=str(root / "runs/peer"),
        per_device_train_batch_size=batch,
        max_steps=updates + 1,
        learning_rate=2e-5,
        batch_sampler="no_duplicates",
        **how,
    )
    loss = losses.MultipleNegativesRankingLoss(model)
    data = datasets.Dataset(table)
    package.SentenceTransformerTrainer(model, settings, train_dataset=data, loss=loss, callbacks=[mark()]).train()
    texts = [text for pair in table.to_pylist() for text in pair.values()]
    encoded = model.tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
    tokens = float(np.mean([*map(len, encoded)])) * 2 * batch * updates
    return tokens / (marks[-1][0] - marks[0][0]), tokens / (marks[-1][1] - marks[0][1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare training of sentence embeddings with sentence-transformers.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("name")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--peer", action="store_true", help="measure sentence-transformers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    shared = args.checkout, args.name, args.updates, args.batch
    if args.peer:
        print(compare_losses())
        rates = measure_peer(*shared, args.precision)
    else:
        rates = measure_ours(*shared, args.micro_batch, args.precision)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{rates[0]:,.0f} real tokens per CPU second, {rates[1]:,.0f} per second, peak {peak:,.0f} MB")


if __name__ == "__main__":
    main()
