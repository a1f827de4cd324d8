"""What is pinned is whole: everything that the public wheels of the pins ask for is pinned, in a version that fits."""

import json

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from constraints.refresh import ENVIRONMENTS, FOLDER, applies, declared_requirements, read_pins, required_extras

ROOT = FOLDER.parent
METADATA = json.loads((FOLDER / "metadata.json").read_text(encoding="utf-8"))
EACH = [(name, python) for name, (_, pythons) in ENVIRONMENTS.items() for python in pythons]


def requirements(name, python):
    """Distribution -> what its recorded metadata asks for there."""
    packages = METADATA[name]["packages"]
    extras, needed = required_extras(packages, [python]), {}
    for pin, lines in packages.items():
        name, needs = pin.split("==")[0], map(Requirement, lines)
        needed[name] = [need for need in needs if applies(need, python, extras.get(name, ()))]
    return needed


def unmet(name, python, pinned):
    """What the pinned packages, next to what a new environment holds, ask for and do not get, in words."""
    held = {"pip"} if Version(python) >= Version("3.12") else {"pip", "setuptools"}
    asked = requirements(name, python)
    if name == "host.txt":
        asked = {"podium": [Requirement(line) for line in declared_requirements()], **asked}
    problems = []
    for distribution, needs in asked.items():
        for need in needs if distribution in {"podium", *pinned} else ():
            version = pinned.get(canonicalize_name(need.name))
            if version is None and need.name in held:
                continue
            if version is None or not need.specifier.contains(version, prereleases=True):
                problems.append(f"{distribution} asks for {need}, pinned is {version or 'nothing'}")
    return problems


def reached(asked, *first):
    names, todo = set(), [canonicalize_name(name) for name in first]
    while todo:
        if (name := todo.pop()) not in names:
            names.add(name)
            todo += [canonicalize_name(need.name) for need in asked.get(name, ())]
    return names


@pytest.mark.parametrize(("name", "python"), EACH)
def test_the_recorded_metadata_is_that_of_the_pins(name, python):
    recorded = dict(pin.split("==") for pin in METADATA[name]["packages"])
    pinned = read_pins(ENVIRONMENTS[name][0], python)
    wrong = [pin for pin, version in pinned.items() if Version(recorded.get(pin, "0")) != Version(version)]
    every = {pin for each in METADATA[name]["pythons"] for pin in read_pins(ENVIRONMENTS[name][0], each)}
    assert (wrong, set(recorded) - every) == ([], set()), "run: make refresh-constraints"


@pytest.mark.parametrize(("name", "python"), EACH)
def test_everything_the_pins_ask_for_is_pinned_in_a_version_that_fits(name, python):
    assert unmet(name, python, read_pins(ENVIRONMENTS[name][0], python)) == []


@pytest.mark.parametrize(
    ("name", "python", "pin", "version"),
    [
        ("host.txt", "3.11.2", "nvidia-cudnn-cu13", None),  # libcudnn.so.9, which a CPU build does not need
        ("host.txt", "3.13", "numpy", "1.0"),
        ("poplar.txt", "3.8", "nvidia-cublas-cu11", None),
    ],
)
def test_a_pin_that_is_missing_or_does_not_fit_is_named(name, python, pin, version):
    pinned = read_pins(ENVIRONMENTS[name][0], python)
    assert pinned.pop(pin)
    problems = unmet(name, python, {**pinned, pin: version} if version else pinned)
    assert problems
    assert all(pin in canonicalize_name(line) for line in problems)


@pytest.mark.parametrize("python", ENVIRONMENTS["host.txt"][1])
def test_beside_torch_stands_what_torch_asks_for_and_nothing_else_needs_it(python):
    host, cuda = (read_pins([file], python) for file in ("host.txt", "cuda.txt"))
    asked = requirements("host.txt", python)
    assert reached(asked, "torch") - set(host) == set(cuda)
    others = {name: needs for name, needs in asked.items() if name != "torch" and name not in cuda}
    assert not [name for name, needs in others.items() if cuda.keys() & {canonicalize_name(n.name) for n in needs}]


def test_nothing_is_pinned_that_nothing_needs():
    first = [*(Requirement(line).name for line in declared_requirements()), "setuptools"]  # the build of pyproject.toml
    pythons = ENVIRONMENTS["host.txt"][1]
    needed = {name for python in pythons for name in reached(requirements("host.txt", python), *first)}
    assert {pin for python in pythons for pin in read_pins(["host.txt"], python)} - needed == set()
