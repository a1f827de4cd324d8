"""Record the requirements of the pinned public wheels in metadata.json next to this file (`make refresh-constraints`).

Plain pip fetches only metadata from the public index, once for every Python of a file, which takes some minutes.
tests/test_constraints.py then checks offline that all requirements are pinned and compatible.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parent
ENVIRONMENTS = {
    "host.txt": (["host.txt", "cuda.txt"], ["3.11.2", "3.12", "3.13"]),  # 3.11.2: Debian 12
    "poplar.txt": (["poplar.txt"], ["3.8"]),
    "audit.txt": (["audit.txt"], ["3.11"]),
}
"""Name -> the files installed together, and their Python versions."""
Extras = dict[str, set[str]]
"""Canonical name of a distribution -> its required extras."""


def declared_requirements() -> list[str]:
    """Return the requirements of pyproject.toml, including those of its extras."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]


def applies(requirement: Requirement, python: str, extras: Iterable[str]) -> bool:
    """Return True if a requirement applies on Linux x86-64 with that Python and these extras of its distribution."""
    linux = {
        "python_version": ".".join(python.split(".")[:2]),
        "implementation_name": "cpython",
        "python_full_version": python if python.count(".") == 2 else f"{python}.0",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "sys_platform": "linux",
        "os_name": "posix",
    }
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**linux, "extra": extra}) for extra in ("", *extras))


def read_pins(files: Iterable[str], python: str) -> dict[str, str]:
    """Return canonical name -> version, as the files pin them for that Python."""
    lines = [line.strip() for file in files for line in (FOLDER / file).read_text(encoding="utf-8").splitlines()]
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pinned if applies(pin, python, ())
    }


def required_extras(requirements: Mapping[str, Iterable[str]], pythons: list[str]) -> Extras:
    """Return the extras that pyproject.toml requires directly or indirectly; `requirements` maps a pin to its own."""
    extras: Extras = {}
    lines = [("", line) for line in declared_requirements()] + [
        (pin.split("==")[0], line) for pin, of_pin in requirements.items() for line in of_pin
    ]
    before = -1
    while before != (before := sum(map(len, extras.values()))):
        for name, line in lines:
            requirement = Requirement(line)
            if any(applies(requirement, python, extras.get(name, ())) for python in pythons):
                extras.setdefault(canonicalize_name(requirement.name), set()).update(requirement.extras)
    return extras


def fetch_report(files: list[str], python: str) -> dict[str, Any]:
    """Return what pip would install, with metadata, ignoring this host's pip settings except its certificate."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name == "PIP_CERT"}
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "report.json")
        words = [f"{name}=={version}" for name, version in read_pins(files, python).items()]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--dry-run",
                "--no-deps",
                "--ignore-installed",
                "--python-version",
                python,
                "--target",
                folder,
                "--report",
                str(found),
                *words,
            ],
            check=True,
            env={**plain, "PIP_CONFIG_FILE": os.devnull},
        )
        content: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return content


def record_requirements(files: list[str], pythons: list[str]) -> dict[str, Any]:
    """Return pin -> its requirements on any of the Pythons, without those of extras that are not required."""
    requirements: dict[str, set[str]] = {}
    for python in pythons:
        for item in fetch_report(files, python)["install"]:
            pin = f"{canonicalize_name(item['metadata']['name'])}=={item['metadata']['version']}"
            requirements.setdefault(pin, set()).update(item["metadata"].get("requires_dist", []))
    extras = required_extras(requirements, pythons)
    packages = {
        pin: sorted(
            line
            for line in requirements[pin]
            if any(applies(Requirement(line), python, extras.get(pin.split("==")[0], ())) for python in pythons)
        )
        for pin in sorted(requirements)
    }
    return {"pythons": pythons, "packages": packages}


if __name__ == "__main__":
    recorded = {name: record_requirements(files, pythons) for name, (files, pythons) in ENVIRONMENTS.items()}
    (FOLDER / "metadata.json").write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    print("constraints/metadata.json:", ", ".join(f"{len(of['packages'])} of {name}" for name, of in recorded.items()))
