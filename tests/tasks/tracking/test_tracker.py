"""What a tracker's thread records, whatever its backend does; and what a stage suffers from any of them: nothing."""

import threading
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import pytest

from tasks.params.sections import TrackingParams
from tasks.stage.background import redact
from tasks.stage.errors import DeviceJobFailed, StagePaused
from tasks.tracking import trackers as tracking
from tasks.tracking.trackers import (
    End,
    Point,
    Tracker,
    Trackers,
    describe_run,
    extract_metrics,
    list_places,
    record_verdict,
    run_id,
)

RUN: dict[str, Any] = {"id": "finetune-0123456789ab", "config": {"seed": 5}}


def step(update: int, **values: float) -> dict[str, Any]:
    return {"event": "step", "step": update, "steps": 100, "eta_seconds": 1.0, **values}


class Memory:
    """A backend that is away for these calls, and does this before it takes points."""

    away: tuple[type[Exception], ...] = (ConnectionError,)

    def __init__(self, has: int = 0, calls_away: Container[int] = (), before: Callable[[], object] = lambda: 0) -> None:
        self.has, self.calls_away, self.before, self.calls = has, calls_away, before, 0
        self.points: list[tuple[int, dict[str, float]]] = []
        self.config: dict[str, Any] = {}
        self.end: End | None = None
        self.logged = threading.Event()

    def open(self, run: Mapping[str, Any]) -> int:
        self._answer()
        return max([self.has, *(update for update, _ in self.points)])

    def configure(self, config: Mapping[str, Any]) -> None:
        self.config.update(config)

    def log(self, points: list[Point]) -> None:
        self.before()
        self.points += [(point.update, dict(point.values)) for point in points]
        self.logged.set()
        self._answer()  # an error comes after it took some

    def close(self, end: End) -> None:
        self._answer()
        self.end = end

    def _answer(self) -> None:
        self.calls += 1
        if self.calls in self.calls_away:
            raise ConnectionError("noone\nthere")


def test_every_number_of_an_event_with_an_update_is_a_metric() -> None:
    event = step(10, loss=2.5, mlm_loss=2.0, learning_rate=1e-3, real_tokens_per_second=99.5)
    assert extract_metrics({**event, "text": "x", "diverged": False}) == (
        10,
        {"loss": 2.5, "mlm_loss": 2.0, "learning_rate": 1e-3, "real_tokens_per_second": 99.5},
    )
    evaluated = {"event": "evaluated", "after": 20, "updates": 100, "loss": 2.0, "parts": {"new": 1}}
    assert extract_metrics(evaluated) == (20, {"held_out/loss": 2.0, "held_out/parts/new": 1.0})
    assert extract_metrics({"event": "saved", "path": "x"}) is None
    assert extract_metrics({"event": "predicted", "rows": 5, "of": 10}) is None


def test_places_are_commands_or_addresses_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    every = ["tensorboard", "mlflow", "wandb", "trackio"]
    assert list_places(every, "podium", "runs/my tracking") == [
        "tensorboard: tensorboard --logdir 'runs/my tracking/tensorboard'",
        "mlflow: mlflow ui --backend-store-uri 'sqlite:///runs/my tracking/mlflow.db'",
        "wandb: wandb sync --append 'runs/my tracking/wandb'/offline-run-*",
        "trackio: TRACKIO_DIR='runs/my tracking/trackio' trackio show --project podium",
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://ana:hush@mlflow.example")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush-hush")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789")
    assert redact("0123456789 at https://me:other@host/a?b=hush-hush") == "*** at https://***@host/a?b=***"
    assert list_places(["mlflow", "wandb"], "podium", "x") == [
        "mlflow: https://***@mlflow.example",
        "wandb: https://wandb.ai (project podium)",
    ]


def test_a_run_is_the_same_on_every_host_and_another_in_another_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_id("finetune", "0123", None) == "finetune-0123"
    assert run_id("finetune", "0123", "a") == run_id("finetune", "0123", "a") != run_id("finetune", "0123", "b")
    asked = TrackingParams(backends=["mlflow"], project="p", name="mine", group=None, folder="there")
    (tmp_path / "params.yaml").write_text("tracking: {backends: [mlflow]}\nseed: 1\n")
    config = {"a": {"b": 1}, "e": [1], "f": None}
    first = describe_run(asked, "finetune", "0123", config, tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 1  # the same\ntracking: {backends: []}\n")
    assert describe_run(asked, "finetune", "0123", config, tmp_path) == first
    assert (first["name"], first["folder"], first["config"]) == ("mine finetune", str(tmp_path / "there"), {"a/b": 1})
    (tmp_path / "params.yaml").write_text("seed: 2\n")
    assert describe_run(asked, "finetune", "0123", {}, tmp_path)["group"] != first["group"]
    for name in ("w1", "."):
        monkeypatch.setenv("PODIUM_RUN", f"2026-11-23T10:00:00+00:00 {name}")
        unnamed = describe_run(TrackingParams(backends=["tensorboard"]), "finetune", "0123", {}, tmp_path)
        assert unnamed["name"] == f"{name} finetune".removeprefix(". ")


def test_what_the_run_has_is_not_recorded_again() -> None:
    backend, tracker = Memory(has=20), Tracker("memory", RUN, print)
    tracker.log(backend, [RUN["config"], *(Point(update, 0.0, {"loss": 1.0 / update}) for update in (10, 20, 30))])
    again = Point(30, 0.0, {"loss": 9.0, "held_out/loss": 3.0})  # all started again from a checkpoint
    tracker.log(backend, [again, Point(25, 0.0, {"loss": 9.0}), End("finished", 30, 0.0, {"f1": 80.0})])
    assert backend.points == [(30, {"loss": 1 / 30}), (30, {"held_out/loss": 3.0})]
    assert backend.config == {"seed": 5}
    assert backend.end == End("finished", 30, 0.0, {"f1": 80.0})


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[Memory | None], None]:
    def use(backend: Memory | None) -> None:
        def load_backend(name: str) -> Callable[..., Memory]:
            if backend is None:
                raise ImportError(f"No module named '{name}'")
            return lambda say: backend

        monkeypatch.setattr(tracking, "load_backend", load_backend)

    monkeypatch.setattr(tracking, "DEADLINE_SECONDS", 120.0)
    return use


AWAY = "tracking: memory: cannot record now, retrying (ConnectionError: noone)"


@pytest.mark.parametrize(
    ("calls_away", "last_words"),
    [
        ([1, 3], []),
        (range(10**9), ["tracking: memory: stopped recording; history.csv has all updates (ConnectionError: noone)"]),
    ],
)
def test_a_backend_that_is_away_gets_everything_once_or_it_is_said(
    monkeypatch: pytest.MonkeyPatch, load: Any, calls_away: Container[int], last_words: list[str]
) -> None:
    backend, lines, heard = Memory(calls_away=calls_away), list[str](), threading.Event()

    def say(text: str) -> None:
        lines.append(text)
        heard.set()

    monkeypatch.setattr(tracking, "AGAIN_SECONDS", 0.01)
    load(backend)
    tracker = Tracker("memory", RUN, say)
    for update in range(1, 8):
        tracker.send(Point(update, 0.0, {"loss": 1.0}))
    assert (backend.logged if not last_words else heard).wait(60.0)
    tracker.send(End("finished"))
    tracker.wait(time.monotonic() + 60.0)
    assert lines == [AWAY, *last_words]
    assert [update for update, _ in backend.points] == ([] if last_words else list(range(1, 8)))
    assert (backend.end is None) == bool(last_words)


ENDED = threading.Event()


@pytest.mark.parametrize(
    ("backend", "updates", "words"),
    [
        (Memory(before=ENDED.wait), 12_000, "memory: did not finish in time"),
        (None, 100, "memory: is not installed (No module named 'memory'): pip install memory"),
        (Memory(before=lambda: {}["x"]), 100, "memory: stopped recording; history.csv has all updates (KeyError: 'x')"),
    ],
    ids=["hanging", "absent", "broken"],
)
def test_a_bad_tracker_is_said_once_and_costs_nothing(load: Any, backend: Any, updates: int, words: str) -> None:
    load(backend)
    lines: list[str] = []
    trackers, slowest = Trackers(["memory"], RUN, lines.append), 0.0
    for update in range(1, updates + 1):
        began = time.perf_counter()
        trackers.on_event(step(update, loss=1.0, learning_rate=1e-3))
        slowest = max(slowest, time.perf_counter() - began)
    began = time.perf_counter()
    trackers.close("finished", {"finetune": {"loss": 1.0}}, 100, seconds=1.0)
    assert time.perf_counter() - began < 60.0, "it hangs until the test ends"
    ENDED.set()
    assert slowest < 10.0
    assert [line.startswith(f"tracking: {words}") for line in lines].count(True) == 1, lines
    assert len(lines) <= 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StagePaused("p", in_a_hurry=True), "paused"),
        (DeviceJobFailed("f"), "failed"),
        (KeyboardInterrupt(), "killed"),
    ],
)
def test_a_tracker_hears_how_the_training_ended(load: Any, error: BaseException, status: str) -> None:
    backend = Memory()
    load(backend)

    def train() -> None:
        with Trackers(["memory"], RUN) as trackers:
            trackers.on_event(step(10, loss=1.0))
            raise error

    with pytest.raises(type(error)):
        train()
    assert backend.points == [(10, {"loss": 1.0})]
    assert backend.end is not None
    assert backend.end.status == status


def test_a_verdict_without_a_training_is_said_where_there_is_a_tracker(tmp_path: Path) -> None:
    lines: list[str] = []
    for backends in ([], ["mlflow"]):
        record_verdict(TrackingParams(backends=backends), "finetune", [], tmp_path, lines.append)
    assert len(lines) == 1
