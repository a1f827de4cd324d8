"""Where the files that tests read are: the project itself, and real data next to it, which a checkout may lack."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

TRACKED = (
    *("params.yaml", "dvc.yaml", "pyproject.toml", ".dvcignore", ".dvc/config", "presets", "inputs"),
    *("flows", "tasks", "ipu_model"),
)
"""What a run reads of the project, and git tracks."""


def copy_project(folder, source=ROOT):
    """Copy the tracked files of the project to `folder`, where nothing has run, whatever ran in `source`."""
    for name in TRACKED:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, folder / name)
    return folder
