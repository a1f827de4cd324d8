"""Stages of dvc.yaml: what each reads and writes, their order, and the kind of host for each.

dvc.yaml is written from the table in tasks/plan/stages.py. It is parsed without DVC, whose import takes a second. The
`meta` of a stage has what the graph of paths does not show:

    host     `device`: the stage runs on the device of device.runtime; `compiler`: it needs the tools of the device, but
             no free device; `cpu:bf16` and so on: this runtime and precision, whatever device.runtime is. Default: any.
    part     part of the pipeline (`podium run --part`): this stage and its upstream stages.
    publish  for a gate: the module that publishes an accepted model; its argument is the item of the stage, if any.
    page     HTML page that the stage writes.
    because  parameter that decides if, or for which items, the stage exists.
"""

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
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

PLAN_FILE = Path("dvc.yaml")
PARAMS_FILE = "params.yaml"
OUTS = ("outs", "metrics", "plots")
"""Keys of a stage with the paths that it writes."""
DEVICE, COMPILER, ANYWHERE = "device", "compiler", "cpu"
VARIABLE = re.compile(r"(?<!\\)\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Stage:
    """A stage as DVC runs it."""

    name: str
    """`gate`, or with its item, `pretrain@phase1`."""
    cmd: str
    deps: tuple[str, ...]
    params: Mapping[str, tuple[str, ...]]
    """File -> keys of parameters that the stage depends on."""
    outs: tuple[str, ...]
    """All paths that the stage writes, including metrics and plots."""
    metrics: tuple[str, ...]
    plots: tuple[str, ...]
    meta: Mapping[str, Any]

    @property
    def group(self) -> str:
        """Name without the item."""
        return self.name.partition("@")[0]

    @property
    def item(self) -> str:
        """Item of `foreach`; empty if there is none."""
        return self.name.partition("@")[2]

    @property
    def figures(self) -> tuple[str, ...]:
        """JSON files with figures of what the stage made; first those that `dvc metrics` shows."""
        folders = (str(artifacts.METRICS), str(artifacts.MEASUREMENTS))
        figures = (out for out in self.outs if out.endswith(".json") and out.rpartition("/")[0] in folders)
        return tuple(dict.fromkeys((*self.metrics, *figures)))

    @property
    def host(self) -> str:
        """`device`, `compiler`, a runtime and precision such as `cpu:bf16`, or `cpu` for any host."""
        return str(self.meta.get("host", ANYWHERE))

    @property
    def uses_device(self) -> bool:
        """True if the stage needs a host with a device or with the tools of one."""
        return self.host.partition(":")[0] != ANYWHERE

    @property
    def holds_device(self) -> bool:
        """True if the stage needs exclusive use of a device."""
        return self.uses_device and self.host != COMPILER

    def kind(self, runtime: str) -> str:
        """Return the kind of worker for the stage: `cpu`, `cuda`, `ipu`, or `auto` if the job chooses the runtime."""
        return runtime if self.host in (DEVICE, COMPILER) else self.host.partition(":")[0]

    @property
    def is_gate(self) -> bool:
        """True if the stage decides what is published."""
        return "publish" in self.meta

    @property
    def reads(self) -> tuple[str, ...]:
        """Paths that the stage depends on, including parameter files other than params.yaml."""
        return (*self.deps, *(file for file in self.params if file != PARAMS_FILE))

    @property
    def names_read(self) -> tuple[set[str], dict[str, set[str]]]:
        """Inputs, and parameters by file."""
        return set(self.deps), {file: set(names) for file, names in self.params.items()}


class Plan(dict[str, Stage]):
    """All stages in execution order.

    Each stage follows its upstream stages. Stages that need no device come first, from the inputs on, so that bad data
    are found early; then compilation; then training and what follows it. Stages of one kind of host are adjacent, so
    that a run on workers changes hosts only a few times. Ties keep the order of dvc.yaml.
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        """Sort the stages topologically.

        Raises:
            InputError: stages form a cycle.
        """
        known = {stage.name: stage for stage in stages}
        self._makers: dict[str, str] = {}
        """Path -> stage that writes it."""
        self._inside: dict[str, set[str]] = defaultdict(set)
        """Folder -> stages that write something in it."""
        for stage in known.values():
            for out in stage.outs:
                self._makers[out] = stage.name
                for folder in PurePosixPath(out).parents:
                    self._inside[str(folder)].add(stage.name)
        self.needs: dict[str, list[str]] = {}
        """Stage -> stages whose outs it reads."""
        for name, stage in known.items():
            makers = {maker for path in stage.reads for maker in self.makers(path)}
            self.needs[name] = [other for other in known if other in makers]
        try:
            upwards = list(TopologicalSorter(self.needs).static_order())
        except CycleError as error:
            raise InputError(f"{PLAN_FILE}: stages form a cycle: {' -> '.join(error.args[1])}") from None
        rank: dict[str, tuple[int, int]] = {}
        for name in upwards:
            before = [rank[other] for other in self.needs[name]]
            tier = _tier(known[name], max((pair[0] for pair in before), default=0))
            rank[name] = tier, 1 + max((pair[1] for pair in before), default=0)
        super().__init__({name: known[name] for name in sorted(known, key=rank.__getitem__)})

    def makers(self, path: str) -> set[str]:
        """Return the stages that write a path, a parent folder, or a file in it."""
        folders = map(str, (PurePosixPath(path), *PurePosixPath(path).parents))
        above = {self._makers[folder] for folder in folders if folder in self._makers}
        return above or self._inside.get(path.rstrip("/"), set())

    def with_upstream(self, names: Iterable[str]) -> list[str]:
        """Return these stages and all their upstream stages, in order."""
        needed: set[str] = set()
        left = list(names)
        while left:
            if (name := left.pop()) not in needed:
                needed.add(name)
                left += self.needs[name]
        return [name for name in self if name in needed]


def _tier(stage: Stage, before: int) -> int:
    """Return the tier of a stage: 0 needs no device, 1 compiles, 2 uses a device, 3 evaluates the results.

    A later use of a device would be tier 4, and so on.
    """
    if before < 2:
        return max(before, {ANYWHERE: 0, COMPILER: 1}.get(stage.host, 2))
    return before + (stage.uses_device == bool(before % 2))


def read_plan(root: Path) -> Plan:
    """Return the stages of the dvc.yaml in `root`.

    Raises:
        InputError: dvc.yaml is invalid, or its stages form a cycle.
    """
    return make_plan(read_definitions(root))


def make_plan(definitions: Mapping[str, Any]) -> Plan:
    """Return the stages of these definitions; the same ones are expanded only once, for all folders."""
    return _expand_plan(json.dumps(definitions, default=str))


@functools.lru_cache(maxsize=4)
def _expand_plan(definitions: str) -> Plan:
    return Plan(expand(json.loads(definitions)))


def read_definitions(root: Path) -> dict[str, Any]:
    """Return the stages of dvc.yaml as written, by group.

    In finished runs of older versions, `vars` names the file with the items of the stages.

    Raises:
        InputError: the file is invalid.
    """
    try:
        content = read_dvc_file(root / PLAN_FILE)
        stages = content.get("stages") if isinstance(content, dict) else None
        if not isinstance(stages, dict):
            return {}
        return fill(stages, read_dvc_file(root / content["vars"][0])) if "vars" in content else stages
    except ParamsError as error:
        raise InputError(str(error)) from None


def expand(definitions: Mapping[str, Any]) -> Iterator[Stage]:
    """Yield every stage of dvc.yaml's `definitions`, one per item of a `foreach`."""
    for group, body in definitions.items():
        if "foreach" not in body:
            yield _stage(group, body, {})
            continue
        items = body["foreach"]
        for key in () if isinstance(items, str) else items:
            item = fill(items[key], {}) if isinstance(items, Mapping) else key
            yield _stage(f"{group}@{key}", body["do"], {"key": key, "item": item})


def _stage(name: str, definition: Mapping[str, Any], values: Mapping[str, Any]) -> Stage:
    filled = fill({key: value for key, value in definition.items() if key != "desc"}, values)
    params: dict[str, tuple[str, ...]] = {}
    for entry in filled.get("params") or ():
        for file, keys in entry.items() if isinstance(entry, dict) else [(PARAMS_FILE, [entry])]:
            params[file] = tuple(dict.fromkeys((*params.get(file, ()), *keys)))
    written = {key: tuple(map(_path, filled.get(key) or ())) for key in OUTS}
    return Stage(
        name,
        filled.get("cmd", ""),
        tuple(dict.fromkeys(map(_path, filled.get("deps") or ()))),
        params,
        tuple(path for key in OUTS for path in written[key]),
        written["metrics"],
        written["plots"],
        filled.get("meta") or {},
    )


def _path(entry: Any) -> str:
    """Return a path of dvc.yaml without its options."""
    return str(next(iter(entry)) if isinstance(entry, dict) else entry)


def fill(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of dvc.yaml with its variables replaced by values; a missing value stays as written."""
    if isinstance(part, Mapping):
        return {fill(name, values): fill(value, values) for name, value in part.items()}
    if isinstance(part, list):
        return [fill(value, values) for value in part]
    if not isinstance(part, str):
        return part
    if (whole := VARIABLE.fullmatch(part)) and isinstance(value := value_at(values, whole[1]), Mapping | list):
        return value
    filled = VARIABLE.sub(lambda match: match[0] if (value := value_at(values, match[1])) is None else str(value), part)
    return filled.replace("\\${", "${")


def differences(name: str, before: Any, now: Any, absent: Any = None) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, recorded value and current value of parameters that differ from dvc.lock; sections are compared key
    by key, and a missing key has the value `absent`.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            yield from differences(f"{name}.{key}", before.get(key, absent), now.get(key, absent), absent)
        return
    if before != now:
        yield name, before, now


def read_dvc_file(path: Path) -> dict[str, Any]:
    """Parse dvc.yaml, dvc.lock or another file of DVC, with aliases; {} if it does not exist.

    Raises:
        ParamsError: it is invalid.
    """
    if not path.is_file():
        return {}
    try:
        values: dict[str, Any] = YAML(typ="safe").load(path.read_bytes())
    except (YAMLError, ValueError) as error:
        raise ParamsError(f"{path} is not YAML: {error}") from None
    return values or {}


def read_locked_stages(path: Path) -> dict[str, Any]:
    """Return the stages of a dvc.lock; {} if it is invalid, which DVC reports."""
    try:
        stages = read_dvc_file(path).get("stages")
    except (ParamsError, AttributeError):
        return {}
    return stages if isinstance(stages, dict) else {}
