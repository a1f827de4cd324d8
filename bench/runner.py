"""Cases to results: children of a case side by side, one round of each after the other."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.cases import Case
from bench.children import Child, ChildFailed
from bench.results import Measured, Results
from bench.variants import Variant

Say = Callable[[str], None]


def run_case(case: Case, threads: int, results: Results, say: Say) -> None:
    """Measure all variants of a case in interleaved rounds; `results` grows with every round.

    A child that fails is noted and left out; the others go on. Whatever ends this function, the children end too.
    """
    running: list[tuple[Child, Measured]] = []
    try:
        for variant in [v for v in case.variants if threads in v.threads]:
            measured = Measured(case.name, variant.name, threads, variant.unit or case.unit)
            results.measured.append(measured)
            child = _start(case, variant, threads, measured, say)
            if child is not None:
                running.append((child, measured))
        started = time.monotonic()
        for number in range(case.rounds):
            for child, measured in list(running):
                if not _measure(child, measured, number, say):
                    running.remove((child, measured))
            spent = time.monotonic() - started
            left = spent / (number + 1) * (case.rounds - number - 1)
            say(f"  {case.name}, {threads} threads: round {number + 1} of {case.rounds}, {left:.0f} s left")
        for child, measured in running:
            try:
                measured.facts.update(child.stop())
            except ChildFailed as failure:
                _note(measured, failure, say)
    finally:
        for child, _ in running:
            child.kill()


def _start(case: Case, variant: Variant, threads: int, measured: Measured, say: Say) -> Child | None:
    try:
        child = Child(case.spec(variant, threads), variant.environment)
    except ChildFailed as failure:
        _note(measured, failure, say)
        return None
    measured.facts.update(child.facts)
    return child


def _measure(child: Child, measured: Measured, number: int, say: Say) -> bool:
    try:
        measured.rounds.append(child.measure(number))
    except ChildFailed as failure:
        _note(measured, failure, say)
        child.kill()
        return False
    return True


def _note(measured: Measured, failure: ChildFailed, say: Say) -> None:
    measured.failure = str(failure)
    say(f"  {measured.case}, {measured.variant} failed: {failure}")
