"""What is wrong with the records of a file, said at once: each kind of problem with a few places and a count."""

from __future__ import annotations

from tasks.project.errors import InputError

SHOWN = 5
"""Places shown of a kind of problem; the others are counted."""
QUOTED = 40
"""Characters of the user's text quoted in messages."""


class Problems:
    """Collects what is wrong with one source."""

    def __init__(self, source: str, meant: str) -> None:
        """Collect nothing yet.

        Args:
            source: in words.
            meant: what its records are to be.
        """
        self.source, self.meant = source, meant
        self._counts: dict[str, int] = {}
        self._shown: dict[str, list[str]] = {}

    def add(self, kind: str, where: str, found: object = None) -> None:
        """Note a problem.

        Args:
            kind: in words; equal ones are counted together.
            where: the place in the source.
            found: what stands there.
        """
        self._counts[kind] = self._counts.get(kind, 0) + 1
        shown = self._shown.setdefault(kind, [])
        if len(shown) < SHOWN:
            shown.append(where if found is None else f"{where} ({found!r:.{QUOTED}})")

    def refuse(self) -> None:
        """Raise InputError with what was collected, if anything was."""
        if not self._counts:
            return
        lines = []
        for kind, count in self._counts.items():
            more = f" and {count - len(self._shown[kind]):,} more" if count > len(self._shown[kind]) else ""
            lines.append(f"\n  {kind}: {', '.join(self._shown[kind])}{more}")
        total = sum(self._counts.values())
        raise InputError(f"{self.source} is not usable as {self.meant}, {total:,} problem(s):{''.join(lines)}")
