"""`make setup` installs next to torch what the torch it got asks for, here from a small index of made-up wheels, and
writes the schemas for editors."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.places import ROOT

BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(folder + "/podium-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("podium-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: podium\\nVersion: 1.0\\n")
        wheel.writestr("podium-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("podium-1.0.dist-info/RECORD", "")
        wheel.writestr("podium-1.0.dist-info/entry_points.txt", "[console_scripts]\\npodium = asked:main")
        wheel.writestr("asked.py", "import sys\\ndef main(): open('asked', 'w').write(' '.join(sys.argv[1:]))")
    return "podium-1.0-py3-none-any.whl"
"""
"""As setuptools is not among these wheels, the project builds itself."""


def make_wheel(folder, name, version, *needs):
    about = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{about}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("needs", "installed"),
    [
        (['nvidia_thing==2.0; platform_system == "Linux"', 'other==1.0; extra == "opt"'], {"nvidia_thing", "deeper"}),
        (["small"], set()),
    ],
    ids=["a CUDA build", "a CPU build"],
)
def test_beside_torch_comes_what_its_metadata_asks_for(tmp_path, needs, installed):
    wheels, project = tmp_path / "wheels", tmp_path / "project"
    (project / "constraints").mkdir(parents=True)
    wheels.mkdir()
    make_wheel(wheels, "torch", "9.0", *needs)
    make_wheel(wheels, "small", "1.0")
    make_wheel(wheels, "nvidia_thing", "2.0", "deeper")
    for version in ("1.0", "1.1"):
        make_wheel(wheels, "deeper", version)
    shutil.copy2(ROOT / "Makefile", project)
    (project / "constraints/host.txt").write_text("torch==9.0\nsmall==1.0\n")
    (project / "constraints/cuda.txt").write_text("nvidia_thing==2.0\ndeeper==1.0\n")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "podium"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (project / "backend.py").write_text(BACKEND)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
    index = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = subprocess.run(
        ["make", "setup", f"PYTHON={getattr(sys, '_base_executable', sys.executable)}"],
        cwd=project,
        env={**plain, **index},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "asked").read_text() == "params schema --write"
    folders = {path.name.split(".dist-info")[0] for path in project.glob(".venv/lib/*/site-packages/*.dist-info")}
    pinned = {"nvidia_thing": "nvidia_thing-2.0", "deeper": "deeper-1.0"}
    assert {"torch-9.0", "small-1.0", "podium-1.0"} <= folders
    assert {name for name in folders if name.startswith(("nvidia", "deeper", "other"))} == {
        pinned[n] for n in installed
    }
