"""A checkout as if every stage up to the gate had run, for each test."""

import shutil
from pathlib import Path

import pytest

from tests.tasks.trained_checkout import make_checkout


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkout(tmp_path_factory.mktemp("trained") / "checkout")


@pytest.fixture
def checkout(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "checkout"))
