"""Size and speed of a model and of its exported files on this host, and the page that shows them with the scores."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ipu_model.core.files import find_value
from tasks.downstream.inference.onnx_answers import count_threads, open_session, run_session
from tasks.downstream.scoring.scores import Scores
from tasks.pages.plots import Plot, PlotLine, plot_lines
from tasks.pages.render import render_html
from tasks.stage import artifacts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTHS = (32, 128, 384)
BATCH = 32
SECONDS = 0.15
"""Time for one figure; at least MIN_CALLS calls, unless these take MOST_SECONDS."""
MIN_CALLS, MAX_CALLS, MOST_SECONDS = 5, 200, 0.75
PERCENTILES = {50: 1, 95: 20, 99: 100}
"""Percentile of the latency -> minimum calls."""
BATCH_SECONDS = 10.0
"""A batch that would take longer is not measured."""
TORCH = "model.safetensors"
"""Name of the row of transformers in tables."""
Run = Callable[[np.ndarray], object]


def measure_all(model: PreTrainedModel, folder: Path, files: Mapping[str, Path], longest: int) -> dict[str, object]:
    """Measure a model with transformers, and each of its exported files with onnxruntime, on this host's processor.

    Args:
        model: from `load_model`.
        folder: its folder.
        files: format -> exported file.
        longest: maximum length of the model.
    """
    threads, lengths = sorted({1, count_threads()}), [length for length in LENGTHS if length <= longest]
    speeds = []
    for count in threads:
        runs = {TORCH: _run_torch(model, count)}
        runs |= {artifacts.EXPORT_FILES[form]: _run_onnx(path, count) for form, path in files.items()}
        for name, run in runs.items():
            figures = measure(run, lengths, model.config.vocab_size)
            speeds += [{"name": name, "threads": count, **row} for row in figures]
            shown = "; ".join(
                f"{row['p50_ms']:.3g} ms for {row['length']} tokens ({row['calls']} calls)" for row in figures
            )
            print(f"{name}, {count} threads: {shown}", flush=True)
    processor = find_value("model name", Path("/proc/cpuinfo")) or platform.machine()
    return {
        "hardware": f"{processor}, {threads[-1]} threads",
        "batch": BATCH,
        "bytes": {TORCH: sum(path.stat().st_size for path in folder.glob("*.safetensors"))},
        "speed": speeds,
    }


def _run_torch(model: PreTrainedModel, threads: int) -> Run:
    import torch

    def run(ids: np.ndarray) -> object:
        torch.set_num_threads(threads)
        with torch.no_grad():
            return model(input_ids=torch.from_numpy(ids), attention_mask=torch.ones(ids.shape, dtype=torch.long))

    return run


def _run_onnx(path: Path, threads: int) -> Run:
    session = open_session(path, threads)
    return lambda ids: run_session(session, ids, np.zeros_like(ids))


def measure(run: Run, lengths: Sequence[int], vocabulary: int) -> list[dict[str, float | int | None]]:
    """Return for each length the number of calls with one sequence and percentiles of their latency in milliseconds,
    and sequences per second in batches of 32; None for what was not measured."""
    records = []
    for length in lengths:
        ids = np.random.default_rng(0).integers(0, vocabulary, (BATCH, length))
        run(ids[:1])
        single, many = _time_calls(run, ids[:1]), list[float]()
        if BATCH * float(np.median(single)) <= BATCH_SECONDS:
            many = _time_calls(run, ids)
        rate = round(BATCH / float(np.median(many)), 1) if many else None
        records.append({"length": length, "calls": len(single), **_percentiles(single), "sequences_per_second": rate})
    return records


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """Return percentiles in milliseconds; None for those that take more calls."""
    return {
        f"p{share}_ms": round(1000 * float(np.percentile(seconds, share)), 3) if len(seconds) >= least else None
        for share, least in PERCENTILES.items()
    }


def _time_calls(run: Run, ids: np.ndarray) -> list[float]:
    times: list[float] = []
    while not times or (len(times) < MAX_CALLS and sum(times) < (SECONDS if len(times) >= MIN_CALLS else MOST_SECONDS)):
        started_at = time.perf_counter()
        run(ids)
        times.append(time.perf_counter() - started_at)
    return times


def list_variants(
    metrics: Mapping[str, Any], measured: Mapping[str, Any], scores: Mapping[str, object], lead: str
) -> list[dict[str, Any]]:
    """Return the model and its exported files with score, interval, size, and latency of one sequence of the middle
    length on one thread.

    Args:
        metrics: metrics of the exports.
        measured: result of `measure_all`.
        scores: metrics of the model itself.
    """
    lengths = sorted({row["length"] for row in measured["speed"]})
    middle = lengths[min(1, len(lengths) - 1)] if lengths else 0
    speed = {row["name"]: row for row in measured["speed"] if row["threads"] == 1 and row["length"] == middle}
    torch_variant = {**scores, "name": TORCH, "bytes": measured["bytes"][TORCH], "differences": {}}
    return [
        {
            "name": variant["name"],
            "score": variant[lead],
            "low": variant[f"{lead}_low"],
            "high": variant[f"{lead}_high"],
            "difference": variant["differences"].get(lead),
            "megabytes": variant["bytes"] / 1e6,
            "length": middle,
            **{key: speed.get(variant["name"], {}).get(key) for key in ("calls", "p50_ms", "p95_ms")},
        }
        for variant in (torch_variant, *metrics["exports"])
    ]


def write_page(
    task: Scores, metrics: Mapping[str, object], measured: Mapping[str, object], scores: Mapping[str, object]
) -> str:
    """Return the page of the exported files; see `list_variants` for the arguments."""
    limit = task.limits[0].metric
    title, variants = task.metrics.titles[limit], list_variants(metrics, measured, scores, limit)

    def plot(key: str, across: str) -> Plot:
        lines = [
            PlotLine(
                form["name"],
                [(form[key], form["low"]), (form[key], form["high"])],
                marks=True,
                color=number,
                dots=[
                    (form[key], form["score"], f"{form['name']}\n{across} {form[key]:.3g}\n{title} {form['score']:.2f}")
                ],
            )
            for number, form in enumerate(variants)
        ]
        return plot_lines(lines, across, f"{title}, percent", f"{title} over {across}", from_zero=False)

    return render_html(
        __file__,
        "export.html.j2",
        name=task.entry.name,
        metric=title,
        variants=variants,
        measured=measured,
        opset=metrics["opset"],
        packages=metrics["packages"],
        by_size=plot("megabytes", "size, MB"),
        by_latency=plot("p50_ms", "latency, ms"),
    )
