"""Great Expectations, loaded without what judging scalars never uses; the only file that imports it.

Half of what its import takes is packages that it needs for other work: plots, statistical tests, databases, clouds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any

from tasks.project import process
from tasks.project.errors import ParamsError

LATER = ("altair", "scipy.stats")
"""Requirements of Great Expectations that load when something of them is first used, which no check of ours does."""
LEFT_OUT = (
    "azure", "boto3", "botocore", "google.api_core", "google.auth", "google.cloud", "google.oauth2", "pyspark",
    "snowflake", "sqlalchemy",
)  # fmt: skip
"""Extras that it asks for and goes without where they are not installed; here others need some of them."""


class _Later(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in LATER else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def _lightly() -> Iterator[None]:
    """Imports inside leave the extras out, and load LATER on first use."""
    finder = _Later()
    left_out = [name for name in LEFT_OUT if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # None: not to be found
    sys.meta_path.insert(0, finder)
    try:
        with process.loading_packages():
            yield
    finally:
        sys.meta_path.remove(finder)
        for name in left_out:
            if sys.modules.get(name, finder) is None:
                del sys.modules[name]


@cache
def great_expectations() -> Any:
    """The package.

    Raises:
        ParamsError: Python was told to forget docstrings.
    """
    if sys.flags.optimize > 1:
        raise ParamsError(
            "PYTHONOPTIMIZE=2 (python -OO) takes docstrings away, without which Great Expectations is not even "
            "imported: unset PYTHONOPTIMIZE"
        )
    with _lightly():
        import great_expectations as package
    return package
