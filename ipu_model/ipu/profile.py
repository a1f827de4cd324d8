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
from typing import Any, Dict, List, Mapping, Optional

OPTIONS = "POPLAR_ENGINE_OPTIONS"
ASKING = ("autoReport.all", "autoReport.outputMemoryProfile")
LIBRARY = "pva"
MB = float(1 << 20)


def profile_file(environ: Mapping[str, str], training: bool) -> Optional[Path]:
    """The newest profile of such a program; None where none was asked for, or none is there."""
    try:
        options = json.loads(environ.get(OPTIONS, "{}"))
    except ValueError:
        return None  # Poplar says so
    if not isinstance(options, dict) or not any(str(options.get(name)).lower() == "true" for name in ASKING):
        return None
    folder = Path(str(options.get("autoReport.directory", "."))) / ("training" if training else "inference")
    found = [path for path in folder.glob("**/profile.pop") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def fullest_ipu_mb(environ: Mapping[str, str], training: bool) -> Optional[float]:
    """Memory of the fullest IPU, gaps between tensors included, MB of 2**20 bytes; None where nobody tells."""
    path = profile_file(environ, training)
    if path is None or importlib.util.find_spec(LIBRARY) is None:
        return None
    report: Any = importlib.import_module(LIBRARY).openReport(str(path))
    each = int(report.compilation.target.tilesPerIpu)
    held: Dict[int, float] = {}
    for index, tile in enumerate(report.compilation.tiles):
        held[index // each] = held.get(index // each, 0.0) + float(tile.memory.total.includingGaps)
    amounts: List[float] = list(held.values())
    return max(amounts) / MB if amounts else None
