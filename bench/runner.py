"""Runner of a case: one child process per variant, with interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.cases import Case
from bench.children import Child, ChildFailed
from bench.results import Measurement, Results
from bench.variants import Variant

Say = Callable[[str], None]


@dataclass
class _VariantRun:
    """A variant with its child process and measurements."""

    variant: Variant
    measured: Measurement
    child: Child | None = None


def run_case(case: Case, threads: int, results: Results, say: Say) -> None:
    """Measure all variants of a case in interleaved rounds; `results` grows with every round.

    If a child fails, its failure is recorded and the others continue. All children end with this function.
    """
    runs = []
    for variant in case.variants:
        if threads in variant.threads:
            runs.append(_VariantRun(variant, Measurement(case.name, variant.name, threads, variant.unit or case.unit)))
    results.measured += [run.measured for run in runs]
    try:
        for run in runs:
            _attempt(run, say, partial(_start, run, case, threads))
        started, rounds = time.monotonic(), case.rounds_at(threads)
        for number in range(rounds):
            for run in runs:
                _attempt(run, say, partial(_measure, run, case, threads, number))
            spent = time.monotonic() - started
            left = spent / (number + 1) * (rounds - number - 1)
            say(f"  round {number + 1} of {rounds}, {left:.0f} s left of this case")
        for run in runs:
            _attempt(run, say, partial(_stop, run))
    finally:
        for run in runs:
            if run.child is not None:
                run.child.kill()


def _attempt(run: _VariantRun, say: Say, action: Callable[[], None]) -> None:
    """Run an action unless the variant has failed; record a failure."""
    if run.measured.failure is not None:
        return
    try:
        action()
    except ChildFailed as failure:
        run.measured.failure = str(failure)
        say(f"  {run.measured.case}, {run.measured.variant} failed: {failure}")
        if run.child is not None:
            run.child.kill()


def _start(run: _VariantRun, case: Case, threads: int) -> None:
    run.child = Child(case.spec(run.variant, threads), run.variant.environment)
    run.measured.facts.update(run.child.facts)


def _measure(run: _VariantRun, case: Case, threads: int, number: int) -> None:
    if case.fresh and number:
        _stop(run)
        _start(run, case, threads)
    assert run.child is not None
    run.measured.rounds.append(run.child.measure(number))


def _stop(run: _VariantRun) -> None:
    assert run.child is not None
    run.measured.facts.update(run.child.stop())
