"""An undisturbed small run: what the project looked like before each stage, and what it came to."""

import functools
import json
import shutil

from tests.faults.small_run import digests


class Pictures:
    """What conftest.take_pictures left in `folder`."""

    def __init__(self, folder):
        self.folder = folder
        self.seconds = json.loads((folder / "seconds.json").read_text())
        """Stage -> seconds of its `dvc repro`; publish -> seconds of the flow that publishes."""

    @property
    def stages(self):
        return list(self.seconds)

    @functools.cached_property
    def digests(self):
        return digests(self.folder / "work")

    def digests_after(self, stage):
        return digests(self._after(stage))

    def kilobytes_added(self, stage):
        return (_bytes(self._after(stage)) - _bytes(self.folder / "before" / stage)) // 1024

    def _after(self, stage):
        later = self.stages[self.stages.index(stage) + 1 :]
        return self.folder / "before" / later[0] if later else self.folder / "work"

    def project_before(self, stage, to, later_from_cache):
        """The project as it was before `stage`, to work in."""
        shutil.copytree(self.folder / "before" / stage, to, symlinks=True)
        after = self.stages[self.stages.index(stage) + 1 :]
        if later_from_cache and after:
            known = set(_cached(self.folder / "before" / after[0]))
            for name in _cached(self.folder / "work"):
                if name not in known:
                    (to / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(self.folder / "work" / name, to / name)
        return to


def _bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _cached(project):
    cache = project / ".dvc" / "cache"
    return [str(path.relative_to(project)) for path in cache.rglob("*") if path.is_file()]
