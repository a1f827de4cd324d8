"""Where things lie that tests read: the project itself, and real data beside it, which a checkout may lack."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
