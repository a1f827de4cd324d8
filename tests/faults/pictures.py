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
        after, before = (
            sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            for folder in (self._after(stage), self.folder / "before" / stage)
        )
        return (after - before) // 1024

    def _after(self, stage):
        stages = list(self.seconds)
        later = stages[stages.index(stage) + 1 :]
        return self.folder / "before" / later[0] if later else self.folder / "work"

    def project_before(self, stage, to, later_from_cache=False):
        shutil.copytree(self.folder / "before" / stage, to, symlinks=True)
        after = self._after(stage)
        for path in (self.folder / "work" / ".dvc" / "cache").rglob("*") if later_from_cache else ():
            name = path.relative_to(self.folder / "work")
            if path.is_file() and not (after / name).exists():
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to / name)
        return to
