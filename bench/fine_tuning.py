"""`python -m bench.fine_tuning`: fine-tune one BERT on the same questions with this project and with HF's Trainer.

Both use the same questions, windows, batch size, learning rate and epochs, and our code evaluates both models on the
same development questions. The comparison covers the CPU time of the training and the official scores. The sides run
one after the other, in separate processes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.children import OF_PEERS, THREAD_VARIABLES, TUNED_MALLOC
from bench.host import collect_host_facts, read_load_average
from ipu_model.core.files import write_json
from tasks.downstream.examples import make_examples
from tasks.downstream.inference.entry import infer_entry as applied_entry
from tasks.downstream.inference.job import InferenceOptions
from tasks.downstream.inference.model import find_model
from tasks.downstream.inference.predict import evaluate
from tasks.downstream.kind import kind_of
from tasks.downstream.squad.compare import compare_files
from tasks.models.model_folders import read_architecture
from tasks.params.entries import TRAIN, find_entry
from tasks.params.overlays import resolve
from tasks.params.schema import ModelParams, Params, validate_params
from tasks.params.sections import RuntimeSpec
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.errors import InputError, PodiumError

ENTRY, OURS = "squad", "podium"
REPORT = Path("reports/bench/fine-tuning.json")
CONFIDENCE = 0.95
BATCH = 32
"""Rows per forward pass in the evaluation, equal for all sides."""


@dataclass(frozen=True)
class FineTuningRecipe:
    """Settings shared by all sides; files and folders are absolute."""

    model: str
    train: str
    dev: str
    epochs: float
    learning_rate: float
    batch_size: int
    seed: int
    threads: int
    limit: int | None
    """Number of questions sampled for training, and of those for evaluation; None: all."""

    @property
    def params(self) -> Params:
        """Parameters of our side, which also define the windows and optimizer of the others."""
        model = read_architecture(Path(self.model), f"--model {self.model}")
        own = {f"model.{name}": getattr(model, name) for name in ModelParams.model_fields}
        paths = {"base_model.path": self.model, "tokenizer.path": self.model}
        data: dict[str, Any] = {"source": "files", "train_path": self.train, "dev_path": self.dev, "seed": self.seed}
        data |= {"limit_train": self.limit, "limit_dev": self.limit}
        tuning = {"epochs": self.epochs, "learning_rate": self.learning_rate, "global_batch_size": self.batch_size}
        sections: dict[str, dict[str, Any]] = {"data": data, "finetune": {**tuning, "seed": self.seed}}
        entry = {f"downstream.{ENTRY}": {"kind": "squad"}}
        entry |= {
            f"downstream.{ENTRY}.{section}.{name}": value
            for section, values in sections.items()
            for name, value in values.items()
        }
        values = {**own, **paths, "device.runtime": "cpu", "device.precision": "fp32", **entry}
        return validate_params(
            resolve({}, "finetune", [f"{name}={json.dumps(value)}" for name, value in values.items()])
        )


@dataclass(frozen=True)
class Side:
    """Side of the comparison: one way to train."""

    name: str
    worker: str
    """module:function(recipe, params, folder, settings) -> figures; saves the model in the folder, the current one."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def make_sides(padded_updates: int | None) -> tuple[Side, ...]:
    """Return all sides: ours, Trainer at its fastest, with random batches, and as set up by the run_qa example.

    Args:
        padded_updates: updates of the last side, which is then not evaluated; None: the whole training.
    """
    peer = "bench.fine_tuning_peer:train"
    return (
        Side(OURS, "bench.fine_tuning:train"),
        Side("hf grouped malloc", peer, {"padding": "longest", "sampling": "group_by_length"}, TUNED_MALLOC),
        Side("hf longest malloc", peer, {"padding": "longest", "sampling": "random"}, TUNED_MALLOC),
        Side("hf padded", peer, {"padding": "max_length", "sampling": "random", "updates": padded_updates}),
    )


def train(recipe: FineTuningRecipe, params: Params, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Fine-tune with our stages, from the base model and the examples, in the current folder."""
    from tasks.downstream.jobs.entry_jobs import build_finetune_job
    from tasks.downstream.packed_rows import write_rows
    from tasks.jobs.device_job import run_device_job
    from tasks.pretraining.base_model import write_base_model
    from tasks.vocabulary.tokenizer import make_tokenizer

    entry = find_entry(params, ENTRY)
    make_tokenizer(params.tokenizer, params.model.max_positions, artifacts.CORPUS, artifacts.TOKENIZER)
    write_base_model(params.base_model, params.model)
    write_rows(kind_of(entry).encoder(entry), TRAIN, folder.parent / "examples" / f"{TRAIN}.parquet")
    job = dataclasses.replace(build_finetune_job(entry, params), run_folder=str(artifacts.RUNS / "job"))
    before = _cpu_of_children()
    result = run_device_job(job, say=say)
    cpu = _cpu_of_children() - before
    return {
        "training_cpu_seconds": cpu,
        "updates": result.steps,
        "real_tokens": result.real_tokens,
        "peak_memory_mb": result.peak_memory_mb,
        "model": str(artifacts.model_folder(ENTRY).absolute()),
        "tokenizer": str(artifacts.TOKENIZER.absolute()),
    }


def _cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def say(text: str) -> None:
    """Print progress to standard error; standard output is for figures."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run_side(side: Side, recipe: FineTuningRecipe, folder: Path) -> dict[str, Any]:
    """Train one side in a separate process and return its figures.

    Raises:
        PodiumError: it failed; its output is above.
    """
    folder.mkdir()
    threads = dict.fromkeys(THREAD_VARIABLES, str(recipe.threads))
    spec = json.dumps({"side": dataclasses.asdict(side), "recipe": dataclasses.asdict(recipe)})
    command = [sys.executable, "-m", "bench.fine_tuning", "--side", spec, "--keep", str(folder)]
    environment = {**os.environ, **OF_PEERS, **threads, **side.environment, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise PodiumError(f"{side.name} ended with exit code {done.returncode}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def evaluate_side(figures: dict[str, Any], dev: Path, folder: Path, name: str) -> dict[str, Any]:
    """Return the official scores of one side's model; write its predictions.json to `folder`."""
    model = find_model(figures["model"], Path(figures["tokenizer"]))
    metrics, words = evaluate(
        applied_entry(model), model, dev, folder, InferenceOptions(RuntimeSpec("cpu", "fp32"), BATCH, say)
    )
    print(f"{name}:\n{words}")
    return {key: metrics[key] for key in ("exact_match", "f1", "f1_low", "f1_high")}


def compare(recipe: FineTuningRecipe, chosen: Sequence[Side], folder: Path) -> dict[str, Any]:
    """Train and evaluate all sides; return figures by side and the differences of scores.

    Args:
        folder: a new folder for all files.
    """
    entry = find_entry(recipe.params, ENTRY)
    summary = make_examples(kind_of(entry).reader(entry), folder / "examples")
    print(summary)
    dev = folder / "dev.jsonl"
    write_dev(dev_file(folder), dev)
    found: dict[str, Any] = {}
    for side in chosen:
        own = folder / side.name.replace(" ", "-")
        print(f"{side.name} ...", flush=True)
        found[side.name] = figures = run_side(side, recipe, own)
        if figures["model"] is not None:
            figures["scores"] = evaluate_side(figures, dev, own / "evaluation", side.name)
            if side.name != OURS:
                figures["podium_f1_difference"] = compare_f1(folder / own.name, folder / OURS, dev_file(folder))
    return found


def dev_file(folder: Path) -> Path:
    """Return the file of development questions, in the format of the stage examples."""
    return folder / "examples" / "dev.parquet"


def compare_f1(theirs: Path, ours: Path, dev: Path) -> dict[str, float]:
    """Return our F1 minus theirs on the same questions, in points, with the interval of the paired bootstrap."""
    first, second = (side / "evaluation" / "predictions.json" for side in (theirs, ours))
    points: dict[str, float] = compare_files(dev, first, second, CONFIDENCE)["f1_difference"]
    print("F1 of {} minus {}: {mean:+.2f} ({low:+.2f} to {high:+.2f})".format(ours.name, theirs.name, **points))
    return points


def write_dev(examples: Path, target: Path) -> None:
    """Write the development questions as JSON lines for `podium evaluate`."""
    import pyarrow.parquet as pq

    lines = (json.dumps(one, ensure_ascii=False) for one in pq.read_table(examples).to_pylist())
    target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def table(found: dict[str, Any]) -> str:
    """Return a table with a line per side: CPU seconds, real tokens per CPU second, our share, scores."""
    ours = _seconds_a_token(found[OURS])
    lines = [f"{'':20}{'updates':>8}{'CPU s':>9}{'tokens/CPU s':>14}{'podium is':>11}{'F1':>8}{'peak MB':>9}"]
    for name, one in found.items():
        share, score = ours / _seconds_a_token(one), one.get("scores", {}).get("f1")
        lines.append(
            f"{name:20}{one['updates']:8,}{one['training_cpu_seconds']:9,.0f}{1 / _seconds_a_token(one):14,.0f}"
            f"{share:11.3f}{'-' if score is None else f'{score:.2f}':>8}{one['peak_memory_mb']:9,.0f}"
        )
    return "\n".join(lines)


def _seconds_a_token(figures: dict[str, Any]) -> float:
    return float(figures["training_cpu_seconds"] / figures["real_tokens"])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.fine_tuning", description="Compare a whole fine-tuning.")
    parser.add_argument("--model", type=Path, help="folder of a BERT with its tokenizer")
    parser.add_argument("--train", type=Path, help="questions, SQuAD v1.1 JSON")
    parser.add_argument("--dev", type=Path, help="other questions")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, help="sample this many questions of each file; default: all")
    parser.add_argument("--padded-updates", type=int, help="stop the padded Trainer early, without scores")
    parser.add_argument(
        "--only", action="append", metavar="SIDE", help="compare with this side (repeatable); default: all"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all files in this new folder")
    parser.add_argument("--report", type=Path, default=REPORT)
    parser.add_argument("--side", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse(sys.argv[1:])
    if options.side is not None:
        _train_side(Side(**options.side["side"]), FineTuningRecipe(**options.side["recipe"]), options.keep)
        return
    for name in ("model", "train", "dev"):
        if getattr(options, name) is None or not getattr(options, name).exists():
            raise InputError(f"--{name} {getattr(options, name)} not found: pass the folder of a BERT and two files")
    files: dict[str, Any] = {name: str(getattr(options, name).resolve()) for name in ("model", "train", "dev")}
    numbers = {name: getattr(options, name) for name in ("epochs", "learning_rate", "batch_size", "seed", "threads")}
    recipe = FineTuningRecipe(**files, **numbers, limit=options.limit)
    facts = {
        **collect_host_facts(sys.argv[1:]),
        "load_at_start": read_load_average(),
        "recipe": dataclasses.asdict(recipe),
    }
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podium-")))
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=options.keep is None)
        chosen = [x for x in make_sides(options.padded_updates) if x.name in (OURS, *(options.only or [x.name]))]
        found = compare(recipe, chosen, folder)
    write_json(options.report, {**facts, "sides": found})
    print(f"\n{table(found)}\n{options.report}")


def _train_side(side: Side, recipe: FineTuningRecipe, folder: Path) -> None:
    """Train one side in `folder`; print the figures as the last line of standard output."""
    module, _, function = side.worker.partition(":")
    params = recipe.params  # before chdir: presets and stage paths are relative to the current folder
    with contextlib.chdir(folder):
        figures = getattr(importlib.import_module(module), function)(recipe, params, folder, side.settings)
    print(json.dumps(figures))


if __name__ == "__main__":
    run_main(main)
