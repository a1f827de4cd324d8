"""Where the files that tests read are: the project itself, and real data next to it, which a checkout may lack."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

SETTINGS = ("params.yaml", "dvc.yaml", "presets", "inputs")
TRACKED = (*SETTINGS, "pyproject.toml", ".dvcignore", ".dvc/config", "flows", "tasks", "ipu_model")
"""What a run reads of the project, and git tracks."""

DVC_FOLDERS = ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR")
"""Variables that name where a DVC keeps what is not of one project."""


def copy_project(folder, names=TRACKED):
    """Copy tracked files of the project to `folder`, where nothing has run, whatever ran in the project."""
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder
