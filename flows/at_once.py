"""Stages that do not need each other, at the same time. Knows nothing of Prefect.

The order of the plan decides who begins; a stage that needs a device has the host for itself, as training is slower
beside anything else.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from flows.dvc.session import DvcSession
from tasks.project.plan_file import Plan

Bring = Callable[[str, DvcSession], None]
"""Brings a stage up to date with a DVC that nobody else uses meanwhile."""


def bring_all(
    stages: Sequence[str], known: Plan, lanes: Sequence[DvcSession], bring: Bring, tell: Callable[[str], None]
) -> list[BaseException]:
    """Bring stages up to date, as many at once as there are lanes.

    Where one fails nothing more begins, and those at work come to their end: what they make is kept.

    Args:
        stages: in the order of the plan; what else they need is up to date.
        known: the plan.
        lanes: see `Bring`.
        bring: is called in threads of its own.
        tell: takes who is waited for, for people.

    Returns:
        What was raised by stages, in the order in which they ended.
    """
    left, free, failed = list(stages), list(lanes), list[BaseException]()
    working: dict[Future[None], tuple[str, DvcSession]] = {}
    with ThreadPoolExecutor(len(lanes)) as threads:
        try:
            while True:
                while free and not failed and (stage := _next(left, [name for name, _ in working.values()], known)):
                    lane = free.pop()
                    lane.start()  # here: it ends with the thread that starts it
                    left.remove(stage)
                    working[threads.submit(contextvars.copy_context().run, bring, stage, lane)] = stage, lane
                if not working:
                    return failed
                for ended in wait(working, return_when=FIRST_COMPLETED).done:
                    stage, lane = working.pop(ended)
                    free.append(lane)
                    if error := ended.exception():
                        failed.append(error)
                        if others := ", ".join(name for name, _ in working.values()):
                            tell(f"after {stage} nothing more begins; {others} may come to an end")
        except BaseException:
            for lane in lanes:
                lane.end()  # else its thread would be waited for
            raise


def _next(left: Sequence[str], working: Sequence[str], known: Plan) -> str | None:
    """The first stage that may begin now; None while it is better to wait."""
    if any(known[stage].uses_device for stage in working):
        return None
    unfinished = {*left, *working}
    ready = (stage for stage in left if unfinished.isdisjoint(known.needs[stage]))
    first = next(ready, None)
    return None if first is not None and working and known[first].uses_device else first
