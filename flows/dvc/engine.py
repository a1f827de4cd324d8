"""The engine: brings stages of a checkout up to date, and publishes the models that their gates accept.

Every command and flow that runs stages here uses it: DVC decides which stages have to run (flows/dvc/session.py), and a
follower shows what happens, on a terminal or on a Prefect server (flows/server/stage_tasks.py).
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flows import dvc
from flows.dvc import releases
from flows.dvc.session import DvcSession, Listener, PlanStatus, StageLock, open_session, use_fork_server
from flows.runs.report import RunReport, StageRecord
from flows.runs.stage_plan import PUBLISH, publish_step
from flows.runs.stopping import RunFailed, RunPaused
from flows.views.screen import current_screen
from tasks.plan.dvc_records import find_gate_damage
from tasks.plan.plan_file import Plan, Stage, read_plan
from tasks.stage.process import read_usage, usage_file


class Follower:
    """Receiver of what happens in a run; this one shows messages on the terminal."""

    def say(self, text: str) -> None:
        """Show a line about the run."""
        current_screen().tell(text)

    def run_step(self, kind: str, name: str, body: Callable[[], str]) -> str:
        """Call the body of a step, `stage` or `publish`; return its status or raise its error."""
        return body()

    def describe_error(self, error: BaseException) -> str:
        """Return the status of a step that ended with an error."""
        return "paused" if isinstance(error, RunPaused) else "failed"

    def listen(self, stage: Stage, run: RunReport) -> Listener:
        """Return the receiver of what a running stage says."""
        return Listener(current_screen().line)


class Engine(contextlib.ExitStack):
    """Stages of one checkout, and the DVC process that brings them up to date. Use it as a context manager."""

    def __init__(
        self,
        root: Path,
        run: RunReport,
        follower: Follower | None = None,
        session: DvcSession | None = None,
        *,
        allowed: Sequence[str] | None = None,
        lock: StageLock | None = None,
        on_end: Callable[[StageRecord], None] = lambda record: None,
    ) -> None:
        """Repair the checkout and start DVC's session, unless one was started before.

        Args:
            run: receives the records of stages, the decisions of gates and the receipts.
            session: session that started before, in a repaired checkout.
            allowed, lock: see `DvcSession`.
        """
        super().__init__()
        self.root, self.run, self._follower, self._on_end = root, run, follower or Follower(), on_end
        self._is_early = session is not None
        if session is None:
            session = self.enter_context(open_session(root, self._follower.say, allowed, lock))
        self.session = session
        session.run = run.identity

    def run_plan(self, plan: Sequence[str], publish: bool, released: releases.ReleaseSelection | None = None) -> None:
        """Bring the stages of a plan up to date, then publish the models that gates accept.

        Gates compare with the releases `released`, by default the newest ones, which are fetched.

        Raises:
            RunFailed: a stage or publishing failed; the message has its error.
            RunPaused: a stage stopped at a checkpoint.
            RunStopped, Interrupted: a signal stopped the run, and there was nothing to keep.
        """
        self.session.require_dvc()
        self.bring(plan, self.check_plan(plan, released))
        if publish:
            self.publish(plan)

    def check_plan(self, plan: Sequence[str], released: releases.ReleaseSelection | None = None) -> PlanStatus:
        """Verify what gates read, fetch the releases that they compare with, and return which stages have changed.

        Raises:
            ReleaseFailed: a release could not be fetched.
        """
        for text in find_gate_damage(self._find_gates(plan), self.root):
            self._follower.say(text)
        status = self.session.check_plan(plan)
        if releases.fetch_releases(plan, self.root, self._follower.say, released, status.unchanged):
            status = self.session.check_plan(plan)
        return status

    def bring(self, plan: Sequence[str], plan_status: PlanStatus) -> None:
        """Bring the stages of a plan with this status (`check_plan`) up to date, in order.

        With a default DVC remote, the outs of each stage are pushed before the next one starts.

        Raises:
            RunFailed, RunPaused, RunStopped, Interrupted: see `run_plan`.
        """
        known, has_forks = self._plan, self._is_early
        others = [] if plan_status.is_complete else [name for name in known.with_upstream(plan) if name not in plan]
        try:
            for number, stage in enumerate(plan, 1):
                upstream = [name for name in known.with_upstream([stage]) if name in others]
                others = [name for name in others if name not in upstream]
                left = [] if stage in plan_status.unchanged else [known[name] for name in (*upstream, stage)]
                status = self._record("stage", stage, functools.partial(self._update_all, left))
                if status == "ran" and not has_forks:  # not earlier: all may be restored, as on most workers
                    coming = [known[name] for name in plan[number:]]
                    self.enter_context(use_fork_server(self.session, coming, self.root))
                    has_forks = True
        finally:
            self.run.read_results(self.root)  # of a failed run too
        reused = [stage for stage in self.run.stages if stage.name in plan and stage.status != "ran"]
        if reused and dvc.has_remote(self.root):  # outs from this host's cache, which the remote may lack
            self.session.push([stage.name for stage in reused], self._follower.say)
        restored = any(stage.status == "restored" for stage in reused)
        if restored and (damaged := find_gate_damage(self._find_gates(plan), self.root)):
            self.run.results.clear()  # no gate wrote this verdict
            raise RunFailed("\n".join(damaged))

    def publish(self, plan: Sequence[str]) -> bool:
        """Publish the models that gates of a plan accepted; return whether a release was missing or had changed.

        Raises:
            ReleaseFailed: publishing failed.
        """
        changed = False
        for name in self._find_gates(plan):
            if not self.run.accepts(name):
                continue

            def publish(gate: Stage = self._plan[name]) -> str:
                receipt = releases.publish_release(gate, self.root, self._follower.say)
                self.run.add_receipt(receipt, gate.name)
                return "skipped" if receipt.get("unchanged") else "ran"

            changed = self._record(PUBLISH, publish_step(self._plan[name]), publish) == "ran" or changed
        return changed

    @functools.cached_property
    def _plan(self) -> Plan:
        return read_plan(self.root)

    def _find_gates(self, plan: Sequence[str]) -> list[str]:
        return [stage for stage in plan if self._plan[stage].is_gate]

    def _record(self, kind: str, name: str, body: Callable[[], str]) -> str:
        """Run a step, add its status and time to the report, and return the status."""
        status, started_at, began = "failed", time.perf_counter(), round(time.time(), 2)
        self.run.at_work[name] = began
        current_screen().begin(name)
        try:
            status = self._follower.run_step(kind, name, body)
        except BaseException as error:
            status = self._follower.describe_error(error)
            raise
        finally:
            seconds = round(time.perf_counter() - started_at, 2)
            usage = read_usage(self.root / usage_file(name), began)
            record = StageRecord(name, status, seconds, None, began, **usage)
            self.run.add_stage(record)
            self._on_end(record)
            current_screen().end(record)
        return status

    def _update_all(self, stages: Sequence[Stage]) -> str:
        """Bring stages up to date in order; return the status of the last one, or "skipped"."""
        verdict, pull = "skipped", dvc.has_remote(self.root)
        for stage in stages:
            verdict = self.session.update(stage.name, self._follower.listen(stage, self.run), pull=pull)
        return verdict
