"""Tiles of a run's page: its scores with what changed, and its progress or duration."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.runs.report import DONE_STAGES, LOWER_IS_BETTER, leading_metric
from flows.views.curves import TrainingCurves
from flows.views.run_view import PretrainingView, ResultView, RunView, format_clock, format_moment
from flows.views.score_changes import Note, format_bounds
from flows.views.screen import REMAINING
from tasks.pages.plots import format_tick

MOST_SCORES = 6
"""Maximum tiles of scores; the section of results has all of them."""
PROGRESS = re.compile(r"\[\s*(\d{1,3})%\]\s*")
UPDATE = re.compile(r"update (\d+)/(\d+)")


@dataclass(frozen=True)
class Tile:
    """One figure of the head."""

    name: str
    figure: str
    notes: Sequence[Note] = ()
    """Lines below the figure."""
    share: float | None = None
    """Percent of the progress bar; None: no bar."""
    page: Path | None = None
    """Page with details."""


def make_tiles(run: RunView, trainings: Sequence[TrainingCurves]) -> list[Tile]:
    """Return the tiles of a run: scores, the last loss if it is running or has no score, progress or duration."""
    scores = [tile for result in run.results for tile in _make_score_tile(result)]
    scores = scores or [tile for phase in run.pretraining[-1:] for tile in _make_pretraining_tiles(phase)]
    scores = scores or [*_make_previous_tiles(run)]
    trained = [training for training in trainings if training.history.get("loss")]
    losses = [_make_loss_tile(trained[-1], run.record.progress.get(trained[-1].stage, ""))] if trained else []
    if run.at_work:
        return [_make_progress_tile(run), *losses, *scores[:MOST_SCORES]]
    return [*(scores[:MOST_SCORES] or losses), _make_duration_tile(run)]


def _make_progress_tile(run: RunView) -> Tile:
    """Return the share of the running stage, or the number of stages if that stage reports no share."""
    record = run.record
    done, stages = _count_done(run), max(len(record.plan), 1)
    if not record.at_work:
        return Tile("progress", f"{done} of {stages} stages", share=100 * done / stages)
    stage = max(record.at_work, key=lambda name: (name in record.progress, record.at_work[name]))
    line, number = record.progress.get(stage, ""), f"stage {min(done + 1, stages)} of {stages}"
    if (share := PROGRESS.match(line)) is None:
        return Tile("progress", number, [(stage, "")], 100 * done / stages)
    left = f", {match[0]}" if (match := REMAINING.search(line)) else ""
    return Tile("progress", f"{share[1]} %", [(f"{stage}{left}", ""), (number, "")], int(share[1]))


def _count_done(run: RunView) -> int:
    return sum(stage.status in DONE_STAGES for stage in run.record.stages if stage.name in run.record.plan)


def _make_duration_tile(run: RunView) -> Tile:
    done, stages = _count_done(run), len(run.record.plan)
    unfinished = [(f"{done} of {stages} stages done", "")] if done < stages else []
    seen, ended = format_clock(run.last_seen)[:16], format_moment(run.record.ended)[:16]
    when = f"killed; last seen {seen}" if run.killed else f"ended {ended}"
    return Tile("duration", run.duration, [(when, ""), *unfinished])


def _make_loss_tile(training: TrainingCurves, progress: str) -> Tile:
    steps, losses, of = training.history["step"], training.history["loss"], UPDATE.search(progress)
    notes = [f"update {steps[-1]:,.0f}{f' of {int(of[2]):,}' if of else ''}"]
    if len(losses) > 1:
        way = "down" if losses[-1] < losses[0] else "up"
        notes.append(f"{way} from {format_tick(losses[0])} at update {steps[0]:,.0f}")
    if held_out := training.held_out.get("loss"):
        notes.append(f"{format_tick(held_out[-1])} on held-out rows")
    return Tile(f"loss of {training.stage.partition('@')[0]}", format_tick(losses[-1]), [(note, "") for note in notes])


def _make_score_tile(result: ResultView) -> Iterator[Tile]:
    """Yield the leading score of a result with its interval and its changes."""
    if result.leading_score is None:
        return
    name, value = result.leading_score
    notes = [*format_bounds(result.intervals.get(name)), *result.changes]
    yield Tile(f"{result.name}: {name.replace('_', ' ')}", value, notes, page=result.page)


def _make_pretraining_tiles(result: PretrainingView) -> Iterator[Tile]:
    """Yield the scores of the last phase of a pre-training on held-out rows, with their changes."""
    previous = result.run.record.previous
    before = previous.get("scores", {}).get(result.name, {})
    for (metric, value), (title, text) in zip(result.values.items(), result.scores, strict=True):
        notes = [(f"{result.name}, {result.result['rows']:,} held-out rows", "")]
        if gain := value - before.get(metric, value):
            word, kind = ("better", "good") if (gain < 0) == (metric in LOWER_IS_BETTER) else ("worse", "bad")
            when = format_moment(previous["began"])[:16]
            notes.append((f"{gain:+.4g} against the run of {when}: {word} (not tested)", kind))
        if metric == "mlm_loss" and result.change:
            notes.append((result.change, ""))
        yield Tile(title, text, notes)


def _make_previous_tiles(run: RunView) -> Iterator[Tile]:
    """Yield the last scores in the folder of a run that has none yet."""
    previous = run.record.previous
    for name, scores in previous.get("scores", {}).items():
        metric = leading_metric({"scores": scores, "leading": previous.get("leading", {}).get(name, ())})
        if metric is not None:
            bounds = format_bounds(previous["intervals"][name].get(metric))
            notes = [*bounds, (f"last result, {format_moment(previous['began'])[:16]}", "")]
            yield Tile(f"{name}: {metric.replace('_', ' ')} before", f"{scores[metric]:.2f}", notes)
