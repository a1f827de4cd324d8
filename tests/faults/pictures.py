"""An undisturbed small run: what the project looked like before each stage, and what it came to."""

import functools
import json
import shutil
import time

from tests.faults import small_run
from tests.faults.small_run import Case, digests


def take_pictures(folder):
    folder.mkdir()
    case = Case(small_run.make_project(folder / "work"), folder)
    seconds = {}
    for stage in (*small_run.PLAN, small_run.PUBLISH):
        shutil.copytree(case.project, folder / "before" / stage, symlinks=True)
        started_at = time.monotonic()
        case.succeed(*case.stage(stage))
        seconds[stage] = round(time.monotonic() - started_at, 2)
    (folder / "seconds.json").write_text(json.dumps(seconds))


class Pictures:
    """What take_pictures left in `folder`."""

    def __init__(self, folder):
        self.folder = folder
        self.seconds = json.loads((folder / "seconds.json").read_text())
        """Stage -> seconds of its `dvc repro`; publish -> seconds of the flow that publishes."""

    @functools.cached_property
    def digests(self):
        return digests(self.folder / "work")

    def digests_after(self, stage):
        return digests(self._after(stage))

    def kilobytes_added(self, stage):
        return (_bytes(self._after(stage)) - _bytes(self.folder / "before" / stage)) // 1024

    def _later(self, stage):
        stages = list(self.seconds)
        return stages[stages.index(stage) + 1 :]

    def _after(self, stage):
        later = self._later(stage)
        return self.folder / "before" / later[0] if later else self.folder / "work"

    def project_before(self, stage, to, later_from_cache=False):
        shutil.copytree(self.folder / "before" / stage, to, symlinks=True)
        if later_from_cache and self._later(stage):
            for name in _cached(self.folder / "work") - _cached(self._after(stage)):
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.folder / "work" / name, to / name)
        return to


def _bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _cached(project):
    cache = project / ".dvc" / "cache"
    return {path.relative_to(project) for path in cache.rglob("*") if path.is_file()}
