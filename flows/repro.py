"""`dvc repro`, followed stage by stage: its lines passed on, its verdicts read. DVC alone decides what has to run."""

from __future__ import annotations

import contextlib
import re
import subprocess
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from flows import dvc, dvc_failures
from flows.stopping import AGAIN, SIGNALS, stop
from tasks.project.errors import PAUSED as PAUSED_CODE
from tasks.project.process import describe_exit
from tasks.project.stage_kinds import STAGES_SENT

PROGRESS = re.compile(r"^\[\s*(\d{1,3})%\]")
"""How stages begin a line that says how far they are (tasks/jobs/device_job.py)."""
ERROR = "error: "
"""How a stage begins what went wrong (tasks/project/main.py)."""
PAUSED = "paused: "
"""How a stage begins the line that says why it stopped on purpose before its end, its checkpoint written."""
HELD = "a checkpoint holds"
"""What that line says where there is something to continue from."""
EXITED = re.compile(r"failed to run: .*, exited with (-?\d+)$")
"""How DVC says what the command of a stage ended with; its own exit code is another."""
ENTERED = re.compile(r"(Running stage|Stage) '([^']+)'(.*)")
"""How DVC begins with a stage."""
PULLING = re.compile(r"Pulling data for stage: '([^']+)'")
"""All that DVC says of a stage that did not change, and whose outs it takes from the remote."""
ENDED_BY_SIGNAL = tuple(code for number in SIGNALS for code in (-number, 128 + number))
"""Exit codes: bash becomes the command, other shells say it in their own code."""
_LOCKS = ("Updating lock file", "Generating lock file")
BOOKKEEPING = (*_LOCKS, "Use `dvc push`", "Stage '", "To track", "\tgit add", "> ", "Data and pipelines are up to date")


class StageFailed(Exception):
    """A stage ended without its outputs; the message holds its own error, or the last lines it printed."""

    def __init__(self, stage: str, reason: str, tail: list[str]) -> None:
        self.stage = stage
        super().__init__(f"stage {stage} failed ({reason}){_own_words(tail)}")


def _own_words(tail: list[str]) -> str:
    """From the error that a stage states to the end; all of its last lines where it states none."""
    stated = [index for index, line in enumerate(tail) if line.startswith(ERROR)]
    if not stated:
        return ". Its last lines:\n" + "".join(f"  {line}" for line in tail).rstrip()
    first, *more = tail[stated[-1] :]
    return "".join([": ", first[len(ERROR) :], *(f"  {line}" for line in more)]).rstrip()


class StagePaused(Exception):
    """A stage stopped before its end on purpose, and continues from its checkpoint when it is run again."""

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        super().__init__(f"stage {stage} paused: {reason.removesuffix(f'; {AGAIN}')}")


class StageStopped(Exception):
    """Ctrl-C or SIGTERM ended a stage that had nothing to keep."""


@dataclass
class _Said:
    """What DVC said of one stage."""

    verdict: str | None = None
    paused: str | None = None
    code: int | None = None
    """What the command of the stage ended with, if DVC says so."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=dvc.KEPT_LINES))

    def hear(self, stage: str, line: str, say: Callable[[str], None], progress: Callable[[float], None]) -> None:
        """Take a line that DVC or `stage` printed, and pass it on."""
        entered = ENTERED.match(line)
        if (pulling := PULLING.match(line)) and pulling[1] == stage:
            self.verdict = "restored"
        if entered and entered[2] == stage:
            self.verdict = _verdict(entered) or self.verdict
        if line.startswith(PAUSED):
            self.paused = line[len(PAUSED) :].strip()
        if exited := EXITED.search(line.rstrip()):
            self.code = int(exited[1])
        if share := PROGRESS.match(line):
            progress(float(share[1]))
        if line.strip() and not _is_bookkeeping(line):
            self.tail.append(line)
            say(line.rstrip())


class Repro:
    """Brings stages of dvc.yaml up to date, each when it is asked for.

    A `dvc repro` of its own for each stage brings what the stage needs up to date, too, and restores what it can from
    the remote. One that `stays` looks at each of these stages alone: DVC starts and reads its packages once. What they
    read must then be up to date when they are asked for.

    A context; to leave it ends a DVC that is still at work.
    """

    def __init__(self, root: Path, sent: Sequence[str] | None = None, stays: bool = False, waits: bool = False) -> None:
        """Start nothing yet.

        Args:
            root: the checkout's folder.
            sent: the stages that may run here; others must be restored. None: all may.
            stays: see above.
            waits: while another DVC does the bookkeeping of a stage; else a few seconds, and then fails.
        """
        self._root, self._stays, self._waits = root, stays, waits
        self._allowed = {} if sent is None else {STAGES_SENT: " ".join(sent)}
        self._process: subprocess.Popen[str] | None = None
        self._word = uuid.uuid4().hex
        """Says that what a DVC that stays prints of a stage has ended."""
        self._asked = contextlib.ExitStack()
        """Passes Ctrl-C and SIGTERM on to DVC's process group."""

    def __enter__(self) -> Repro:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """End a DVC that is still at work, and the stage with it."""
        self._asked.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def get_ready(self) -> None:
        """Start a DVC that stays, if there is none yet; it ends with the thread that does this."""
        if self._stays and self._process is None:
            words = ["--wait-for-lock"] if self._waits else []
            self._start([*dvc.LANE, self._word, "dvc", *words, "repro", "--single-item"], subprocess.PIPE)

    def bring(self, stage: str, say: Callable[[str], None], progress: Callable[[float], None]) -> str:
        """Bring `stage` up to date.

        Args:
            stage: a name of dvc.yaml, such as `pretrain@phase1`.
            say: takes every line for people.
            progress: takes the share that is done, 0 to 100, whenever the stage says it.

        Returns:
            "ran", "restored" (from DVC's run-cache or the remote) or "skipped" (nothing had changed).

        Raises:
            StageFailed: the command failed; its outputs are as DVC leaves them, absent. Or DVC could not copy them into
                its cache; the next run makes them again.
            StagePaused: the command stopped at a checkpoint on purpose; running it again continues.
            StageStopped: Ctrl-C or SIGTERM ended it, or came before it began, and there is no checkpoint.
        """
        if stop.number:
            raise StageStopped(stage)
        self._ask_for(stage)
        said = _Said()
        code = self._follow(stage, said, say, progress)
        if code and said.paused is not None and (not stop.number or HELD in said.paused):
            raise StagePaused(stage, said.paused)
        if code and stop.number and said.code in (None, PAUSED_CODE, *ENDED_BY_SIGNAL):
            raise StageStopped(stage)
        if reason := _failure(code, said):
            tail = list(said.tail)
            raise StageFailed(stage, reason + dvc_failures.explain(stage, self._root, tail), tail)
        assert said.verdict is not None
        return said.verdict

    def _ask_for(self, stage: str) -> None:
        if not self._stays:
            pull = ["--pull"] if dvc.has_remote(self._root) else []
            self._start([*dvc.DVC, "repro", *pull, "--", stage])
            return
        self.get_ready()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and what it printed last says why
            self._process.stdin.write(f"{stage}\n")
            self._process.stdin.flush()

    def _start(self, command: list[str], stdin: int = subprocess.DEVNULL) -> None:
        self._process = stop.start(command, self._root, {**dvc.environment(), **self._allowed}, stdin)
        self._asked.enter_context(stop.passed_to(self._process))

    def _follow(self, stage: str, said: _Said, say: Callable[[str], None], progress: Callable[[float], None]) -> int:
        """Pass on what DVC prints of a stage; returns its exit code."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text, ended, code = line.partition(self._word)
            if text:
                said.hear(stage, text, say, progress)
            if ended:
                return int(code)
        self._asked.close()
        return self._process.wait()


def _failure(code: int, said: _Said) -> str:
    """Why a stage counts as failed; empty where it does not."""
    if code:
        return describe_exit(code if said.code is None else said.code)
    if any(line.startswith(dvc_failures.NOT_KEPT) for line in said.tail):
        return "DVC could not keep what it made in its cache"
    return "" if said.verdict else "DVC ended without a word of it"


def _verdict(entered: re.Match[str]) -> str | None:
    """What DVC's line says of its stage."""
    if entered[1] == "Running stage":
        return "ran"
    if entered[3].startswith(" is cached - skipping run"):
        return "restored"
    return "skipped" if entered[3].startswith(" didn't change") else None


def _is_bookkeeping(line: str) -> bool:
    """Lines of DVC that say nothing to somebody who watches the flow; the command's own error is said already."""
    return line.startswith(BOOKKEEPING) or ("failed to reproduce" in line and "failed to run:" in line)
