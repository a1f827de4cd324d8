"""dvc.yaml, the one list of stages: what there is, what each reads and writes, in which order, on which kind of host.

Read without DVC, whose import takes a second: every `foreach` is written out, and the values of plan.yaml are filled in
(tasks/plan/composing.py). What the graph of paths does not tell stands in the `meta` of a stage:

    host     `device`: runs on the device that device.runtime names; `compiler`: needs the device's tools, and no device
             that is free; `cpu:bf16` and the like: in that place, whatever device.runtime says. Without it: anywhere.
    part     name of a part of the pipeline (`podium run --part`): this stage, and what it needs.
    publish  of a gate: the module that publishes what it accepts; it takes the item of the stage, where that has one.
    page     a page for people that the stage writes.
    helps    name of the stages that take up what is finished of its work: it runs before them, its items side by side.
    because  the parameter that says whether, or for what, such stages are made.
"""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tasks.params.strict_yaml import value_at
from tasks.stage.errors import InputError, ParamsError

PLAN_FILE = Path("dvc.yaml")
PARAMS_FILE, COMPOSED_FILE = "params.yaml", "plan.yaml"
OUTS = ("outs", "metrics", "plots")
"""Keys of a stage under which the paths stand that it writes."""
DEVICE, COMPILER, ANYWHERE = "device", "compiler", "cpu"
VARIABLE = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Stage:
    """A stage as DVC runs it."""

    name: str
    """`gate`, or with its item `pretrain@phase1`."""
    cmd: str
    deps: tuple[str, ...]
    params: Mapping[str, tuple[str, ...]]
    """File -> the keys whose values decide."""
    outs: tuple[str, ...]
    """All that it writes, metrics and plots included."""
    metrics: tuple[str, ...]
    plots: tuple[str, ...]
    meta: Mapping[str, Any]

    @property
    def group(self) -> str:
        """The name without the item."""
        return self.name.partition("@")[0]

    @property
    def item(self) -> str:
        """What of `foreach` it is made for; empty where there is none."""
        return self.name.partition("@")[2]

    @property
    def host(self) -> str:
        """`device`, `compiler`, a place such as `cpu:bf16`, or `cpu` where any host will do."""
        return str(self.meta.get("host", ANYWHERE))

    @property
    def uses_device(self) -> bool:
        """Whether it belongs on a host with a device, or with the tools of one."""
        return self.host.partition(":")[0] != ANYWHERE

    @property
    def holds_device(self) -> bool:
        """Whether it needs a device for itself while it runs."""
        return self.uses_device and self.host != COMPILER

    def kind(self, runtime: str) -> str:
        """The kind of worker it belongs to: `cpu`, `cuda`, `ipu`, or `auto` where the runtime is chosen as it runs.

        Args:
            runtime: `device.runtime` of the parameters.
        """
        return runtime if self.host in (DEVICE, COMPILER) else self.host.partition(":")[0]

    @property
    def is_gate(self) -> bool:
        """Whether it decides what is published."""
        return "publish" in self.meta

    @property
    def reads(self) -> tuple[str, ...]:
        """Paths that it depends on; files of parameters, too, but params.yaml and plan.yaml."""
        return (*self.deps, *(file for file in self.params if file not in (PARAMS_FILE, COMPOSED_FILE)))


class Plan(dict[str, Stage]):
    """All stages, in the order in which a run brings them up to date.

    Each comes after what it needs: first what needs no device, from what is given on, so that bad data are found early;
    then the programs; then training and what comes after it. Stages of one kind of host stand together, so that a run
    on workers changes hosts a few times only. Where that leaves a choice, dvc.yaml's order counts.
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        """Sort the stages.

        Raises:
            InputError: some need each other.
        """
        known = {stage.name: stage for stage in stages}
        self._makers = _makers(known.values())
        self.needs = {name: self._needed_by(stage, known) for name, stage in known.items()}
        """Stage -> the stages whose outs it reads, and those that help it."""
        try:
            upwards = list(TopologicalSorter(self.needs).static_order())
        except CycleError as error:
            raise InputError(f"{PLAN_FILE}: stages need each other: {' -> '.join(error.args[1])}") from None
        rank: dict[str, tuple[int, int]] = {}
        for name in upwards:
            before = [rank[other] for other in self.needs[name]]
            tier = _tier(known[name], max((one[0] for one in before), default=0))
            rank[name] = tier, 1 + max((one[1] for one in before), default=0)
        super().__init__({name: known[name] for name in sorted(known, key=rank.__getitem__)})

    def makers(self, path: str) -> set[str]:
        """The stages that write a path, the folder it is in, or something in it."""
        folders = map(str, (PurePosixPath(path), *PurePosixPath(path).parents))
        makers, inside = self._makers
        return {makers[folder] for folder in folders if folder in makers} or inside.get(path.rstrip("/"), set())

    def behind(self, names: Iterable[str]) -> list[str]:
        """These stages and all that they need, in order."""
        found: set[str] = set()
        left = list(names)
        while left:
            if (name := left.pop()) not in found:
                found.add(name)
                left += self.needs[name]
        return [name for name in self if name in found]

    def _needed_by(self, stage: Stage, known: Mapping[str, Stage]) -> list[str]:
        found = {maker for path in stage.reads for maker in self.makers(path)}
        found |= {other.name for other in known.values() if other.meta.get("helps") == stage.group}
        return [name for name in known if name in found]


def _tier(stage: Stage, before: int) -> int:
    """A number for stages that stand together: 0 needs no device, 1 compiles, 2 uses one, 3 judges what that made.

    Were something to use a device after that, it would be 4, and so on.
    """
    if before < 2:
        return max(before, {ANYWHERE: 0, COMPILER: 1}.get(stage.host, 2))
    return before + (stage.uses_device == bool(before % 2))


def _makers(stages: Iterable[Stage]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Path -> the stage that writes it, and folder -> the stages that write something in it."""
    makers: dict[str, str] = {}
    inside: dict[str, set[str]] = defaultdict(set)
    for stage in stages:
        for out in stage.outs:
            makers[out] = stage.name
            for folder in PurePosixPath(out).parents:
                inside[str(folder)].add(stage.name)
    return makers, inside


def read_plan(root: Path, composed: Mapping[str, Any] | None = None) -> Plan:
    """The stages of the dvc.yaml in `root`.

    Args:
        root: a checkout.
        composed: what plan.yaml would hold; None: what it holds, where there is one.

    Raises:
        InputError: dvc.yaml is broken, or its stages need each other.
    """
    values = _composed_in(root) if composed is None else composed
    return _plan_of(json.dumps(definitions_of(root), default=str), json.dumps(values, default=str))


@functools.lru_cache(maxsize=4)
def _plan_of(definitions: str, values: str) -> Plan:
    """Expand the same definitions with the same values once, in whatever folder they are."""
    return Plan(expand(json.loads(definitions), json.loads(values)))


def definitions_of(root: Path) -> dict[str, Any]:
    """The stages of dvc.yaml as they are written there, group by group.

    Raises:
        InputError: the file is broken.
    """
    try:
        content = read_dvc_file(root / PLAN_FILE)
    except ParamsError as error:
        raise InputError(str(error)) from None
    stages = content.get("stages") if isinstance(content, dict) else None
    return stages if isinstance(stages, dict) else {}


def _composed_in(root: Path) -> dict[str, Any]:
    try:
        return read_dvc_file(root / COMPOSED_FILE)
    except ParamsError:
        return {}  # DVC says what is wrong with it


def expand(definitions: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Stage]:
    """Every stage of dvc.yaml's `definitions`, one for each item of a `foreach`, with `values` filled in.

    A value that is missing stays as it is written, `${corpus.path}`.
    """
    for group, body in definitions.items():
        if "foreach" not in body:
            yield _stage(group, body, values)
            continue
        for key, item in _items(body["foreach"], values):
            own = {"key": key, "item": fill(item, values) if isinstance(item, Mapping) else key}
            yield _stage(f"{group}@{key}", body["do"], {**values, **own})


def _items(foreach: Any, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Key and value of each item; a list's items are both."""
    if isinstance(foreach, str) and (named := VARIABLE.fullmatch(foreach)):
        foreach = value_at(values, named[1]) or ()
    items = foreach.items() if isinstance(foreach, Mapping) else zip(foreach, foreach, strict=True)
    yield from ((str(key), item) for key, item in items)


def _stage(name: str, definition: Mapping[str, Any], values: Mapping[str, Any]) -> Stage:
    filled = fill({key: value for key, value in definition.items() if key != "desc"}, values)
    params: dict[str, tuple[str, ...]] = {}
    for entry in filled.get("params") or ():
        for file, keys in entry.items() if isinstance(entry, dict) else [(PARAMS_FILE, [entry])]:
            params[file] = (*params.get(file, ()), *keys)
    written = {key: tuple(map(_path, filled.get(key) or ())) for key in OUTS}
    return Stage(
        name,
        filled.get("cmd", ""),
        tuple(map(_path, filled.get("deps") or ())),
        params,
        tuple(path for key in OUTS for path in written[key]),
        written["metrics"],
        written["plots"],
        filled.get("meta") or {},
    )


def _path(entry: Any) -> str:
    """A path of dvc.yaml, with options or without."""
    return str(next(iter(entry)) if isinstance(entry, dict) else entry)


def fill(part: Any, values: Mapping[str, Any]) -> Any:
    """A part of dvc.yaml with its variables replaced by their values."""
    if isinstance(part, Mapping):
        return {fill(name, values): fill(value, values) for name, value in part.items()}
    if isinstance(part, list):
        return [fill(value, values) for value in part]
    if not isinstance(part, str) or "${" not in part:
        return part
    return VARIABLE.sub(lambda found: _text(value_at(values, found[1]), found[0]), part)


def _text(value: Any, missing: str) -> str:
    """A value as DVC writes it into a text."""
    return missing if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def differences(place: str, stated: Any, now: Any, absent: Any = None) -> Iterator[tuple[str, Any, Any]]:
    """Where dvc.lock states another value of a parameter than it has now, of a section by its keys: place, stated, now.

    Args:
        place: the dotted name.
        stated: by dvc.lock.
        now: as it is.
        absent: stands for a key that one side does not have.
    """
    if isinstance(stated, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*stated, *now]):
            yield from differences(f"{place}.{key}", stated.get(key, absent), now.get(key, absent), absent)
        return
    if stated != now:
        yield place, stated, now


def read_dvc_file(path: Path) -> dict[str, Any]:
    """dvc.yaml, dvc.lock or another file of DVC, aliases and all; {} where there is none.

    Raises:
        ParamsError: it is broken.
    """
    if not path.is_file():
        return {}
    try:
        values: dict[str, Any] = YAML(typ="safe").load(path.read_bytes())
    except (YAMLError, ValueError) as error:
        raise ParamsError(f"{path} is not YAML: {error}") from None
    return values or {}


def stages_of(path: Path) -> dict[str, Any]:
    """The stages of a dvc.lock; {} where DVC could not read it either: it says why."""
    try:
        stages = read_dvc_file(path).get("stages")
    except (ParamsError, AttributeError):
        return {}
    return stages if isinstance(stages, dict) else {}
