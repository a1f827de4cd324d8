"""Memory of IPUs as libpva reads it from the profile of a compilation, where somebody asked Poplar for one.

    POPLAR_ENGINE_OPTIONS='{"autoReport.outputMemoryProfile": "true", "autoReport.directory": "profiles"}'

autoReport.all asks for it, too. PopTorch writes profile.pop into a folder of its own for training and for inference
(libpva's documented names; none was read here, as there was neither an IPU nor libpva).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

OPTIONS = "POPLAR_ENGINE_OPTIONS"
ASKING = ("autoReport.all", "autoReport.outputMemoryProfile")
LIBRARY = "pva"
MB = float(1 << 20)


class CompileProfile:
    """The profile that one compilation writes; what stood in its folder before is of another program.

    Make it before the compilation, and call `notice` after it. Where the program comes from a cache nothing is written.

    Args:
        environ: where Poplar's options are.
        training: the program trains; else it infers.
    """

    def __init__(self, environ: Mapping[str, str], training: bool) -> None:
        self._folder = _profile_folder(environ, training)
        self._before = self._stamps()
        self._written: Optional[Path] = None
        self._fullest_mb: Optional[float] = None

    def notice(self) -> None:
        """Take the newest profile that is not as it was before the compilation."""
        written = [(stamp, path) for path, stamp in self._stamps().items() if self._before.get(path) != stamp]
        self._written = max(written)[1] if written else None

    def fullest_ipu_mb(self) -> Optional[float]:
        """Return the memory of the fullest IPU, gaps between tensors included; None without a profile or libpva.

        A profile has up to gigabytes: it is read with the first call.
        """
        path, self._written = self._written, None
        if path is not None and importlib.util.find_spec(LIBRARY) is not None:
            self._fullest_mb = _read_fullest_mb(path)
        return self._fullest_mb

    def _stamps(self) -> Dict[Path, Tuple[int, int]]:
        """Path of each profile -> when it was written, and its size."""
        if self._folder is None:
            return {}
        found = [(path, path.stat()) for path in self._folder.glob("**/profile.pop") if path.is_file()]
        return {path: (status.st_mtime_ns, status.st_size) for path, status in found}


def _profile_folder(environ: Mapping[str, str], training: bool) -> Optional[Path]:
    """Return where profiles of such a program are written; None where none was asked for."""
    try:
        options = json.loads(environ.get(OPTIONS, "{}"))
    except ValueError:
        return None  # Poplar says so
    if not isinstance(options, dict) or not any(str(options.get(name)).lower() == "true" for name in ASKING):
        return None
    return Path(str(options.get("autoReport.directory", "."))) / ("training" if training else "inference")


def _read_fullest_mb(path: Path) -> Optional[float]:
    """Read the memory of the fullest IPU, MB of 2**20 bytes."""
    report: Any = importlib.import_module(LIBRARY).openReport(str(path))
    each = int(report.compilation.target.tilesPerIpu)
    amounts: Dict[int, float] = {}
    for index, tile in enumerate(report.compilation.tiles):
        amounts[index // each] = amounts.get(index // each, 0.0) + float(tile.memory.total.includingGaps)
    return max(amounts.values()) / MB if amounts else None
