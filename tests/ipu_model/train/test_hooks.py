"""The loop and its hooks: who runs when, and what ends a training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generator, List, Tuple

import numpy as np
import pytest

from ipu_model.core.errors import NonFiniteLoss
from ipu_model.distributed.process import Terminated
from ipu_model.rows.row_folder import UpdateRows
from ipu_model.runtimes.runtime import StepMetrics, UpdateAborted
from ipu_model.train.history import History
from ipu_model.train.training import Hook, TrainingState, train

Log = List[Tuple[str, str, int]]


class Losses:
    """A runtime whose losses come from a list; a loss of 0 is an update that was given up."""

    def __init__(self, losses: List[float]) -> None:
        self._losses = losses

    def share(self, rows: int) -> slice:
        return slice(0, rows)

    def calls(self, rows: Any, order: UpdateRows, steps: range) -> Generator[np.ndarray, None, None]:
        yield from (order(step, steps.step) for step in steps)

    def train_step(self, batch: np.ndarray, learning_rate: float) -> StepMetrics:
        loss = self._losses.pop(0)
        if loss == 0:
            raise UpdateAborted
        return StepMetrics(loss, {}, len(batch), 10 * len(batch), 1.0)

    def peak_device_memory_mb(self) -> None:
        return None


class Noting(Hook):
    """Notes when it was called; ends the training after update `last`."""

    def __init__(self, name: str, log: Log, last: int = -1) -> None:
        self._name, self._log, self._last = name, log, last

    def _note(self, what: str, done: int) -> None:
        self._log.append((self._name, what, done))

    def start(self, training: TrainingState) -> None:
        self._note("start", training.done)
        training.ends_early = training.done == self._last

    def after_step(self, training: TrainingState) -> None:
        self._note("step", training.done)
        training.ends_early |= training.done == self._last

    def after_aborted_step(self, training: TrainingState) -> None:
        self._note("given up", training.done)
        raise Terminated("enough")

    def finish(self) -> None:
        self._note("finish", -1)


def trained(losses: List[float], hooks: List[Hook], first: int = 0, per_call: int = 1) -> Any:
    plan: Any = SimpleNamespace(
        updates=6,
        updates_per_call=per_call,
        warmup_updates=0,
        schedule="constant",
        decay_updates=None,
        rows_per_update=2,
        total_rows=12,
        batch_sizes=None,
    )
    job: Any = SimpleNamespace(optimizer=SimpleNamespace(learning_rate=0.5), seed=1)
    rows: Any = range(12)
    runtime: Any = Losses(losses)
    return train(job, plan, rows, runtime, hooks, first)


def test_hooks_run_in_their_order_after_every_call() -> None:
    log: Log = []
    totals = trained([1.0, 2.0, 3.0], [Noting("a", log), Noting("b", log)], per_call=2)
    assert log == [
        (name, what, done)
        for what, done in (("start", 0), ("step", 2), ("step", 4), ("step", 6), ("finish", -1))
        for name in "ab"
    ]
    assert (totals.updates, totals.sequences, totals.real_tokens) == (6, 12, 120)


def test_a_hook_that_ends_the_training_lets_those_after_it_see_the_last_update() -> None:
    log: Log = []
    totals = trained([1.0] * 6, [Noting("stops", log, last=4), Noting("saves", log)], first=2)
    assert totals.updates == 4
    assert [entry for entry in log if entry[0] == "saves"][1:] == [
        ("saves", "step", 3),
        ("saves", "step", 4),
        ("saves", "finish", -1),
    ]
    again: Log = []
    assert trained([], [Noting("stops", again, last=4)], first=4).updates == 4  # it had been stopped before
    assert again == [("stops", "start", 4), ("stops", "finish", -1)]


def test_no_hook_sees_an_update_whose_loss_is_not_finite() -> None:
    log: Log = []
    with pytest.raises(NonFiniteLoss, match="the loss of update 2 is nan"):
        trained([1.0, float("nan")], [Noting("a", log)])
    assert log == [("a", "start", 0), ("a", "step", 1)]


def test_an_update_that_was_given_up_ends_the_training_with_what_was_done_before() -> None:
    log: Log = []
    with pytest.raises(Terminated, match="enough"):
        trained([1.0, 0.0], [Noting("a", log)])
    assert log[-1] == ("a", "given up", 1)


@pytest.mark.parametrize(("per_call", "done", "every", "reached"), [(1, 4, 2, True), (1, 5, 2, False), (4, 8, 6, True)])
def test_a_call_reaches_what_lies_between_its_updates(per_call: int, done: int, every: int, reached: bool) -> None:
    runtime: Any = None
    training = TrainingState(runtime, 100, per_call)
    training.totals.updates = done
    assert training.has_reached(every) is reached
    assert not training.has_reached(0)


def test_a_slow_training_tells_its_time_left_between_windows_without_its_first_update(tmp_path: Path) -> None:
    events: List[Any] = []
    runtime: Any = None
    training, history = TrainingState(runtime, 100), History(tmp_path, [], 10, lambda *_, **event: events.append(event))
    training.metrics, training.learning_rate = StepMetrics(1.0, {}, 1, 1, 1.0), 0.1
    history.start(training)
    for done, seconds in ((1, 12.0), (2, 16.0), (3, 20.0), (4, 24.0)):
        training.totals.updates, training.totals.seconds = done, seconds
        history.after_step(training)
    assert [(event["update"], event["eta_seconds"]) for event in events] == [(1, 1188.0), (3, 388.0)]


@pytest.mark.parametrize(
    ("every", "first", "per_call", "after"), [(4, 0, 1, 1), (4, 2, 1, 3), (4, 0, 2, 2), (1, 0, 1, 0)]
)
def test_the_time_left_is_told_from_the_first_update_on(
    tmp_path: Path, every: int, first: int, per_call: int, after: int
) -> None:
    """In an event of its own, unless that update ends a window, whose event has it."""
    events: List[Any] = []
    history = History(tmp_path, [], every, lambda event, **fields: events.append((event, fields)))
    log: Log = []
    hooks = [history, Noting("other", log)]
    trained([1.0] * 6, hooks, first, per_call)
    kind, told = events[0]
    assert told["eta_seconds"] >= 0
    assert [name for name, _ in events].count("progress") == bool(after)
    if after:
        assert (kind, told["update"], told["of"], told["loss"]) == ("progress", after, 6, 1.0)
    else:
        assert (kind, told["step"]) == ("step", 1)
    assert (tmp_path / "history.csv").read_text().count("\n") == 1 + sum(name == "step" for name, _ in events)
