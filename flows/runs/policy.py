"""What a worker allows the runs that it is sent: whoever reaches the Prefect server can send one, with any values.

Its own settings decide, never what was sent: PODIUM_INPUT_ROOTS, PODIUM_TARGETS, and what the params.yaml and the
presets of its own checkout say.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.runs.checkout import key_of
from tasks.downstream.inference.fetched import CHOSEN
from tasks.params.overlays import preset_names, read_preset
from tasks.params.schema import Params, check
from tasks.params.sections import HUB_NAME
from tasks.params.strict_yaml import MAX_BYTES, parse_yaml, read_yaml, value_at, yaml_text
from tasks.plan.named_files import NAMED, READ, WRITTEN, find_parameters, shown
from tasks.plan.plan_file import Plan
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

INPUT_ROOTS = "PODIUM_INPUT_ROOTS"
"""Folders besides the checkout's `inputs` that sent runs may read, apart by os.pathsep."""
TARGETS = "PODIUM_TARGETS"
"""Where sent runs may write besides the checkout, apart by commas: folders, URLs, and repositories (team/podium-*)."""
TRACKING, FOLDER_OF_RELEASE = "tracking.folder", ".publish.folder"
"""The parameters that name a folder to write; the second of an entry."""
CHECKOUT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}-[0-9a-f]{8}")
IPU_CACHE = "executable_cache_dir"
"""The one key of an ipu_config.json that names a folder."""
IPU_CACHE_OFF = (None, "", "disabled")
SHOWN = 80
"""Characters of a sent text that a message repeats."""


def require_parameters(values: dict[str, Any], project: Path, where: str = "the parameters of this run") -> Params:
    """Check parameters that were sent, which must name nothing that this worker does not allow, and return them.

    Nothing they name is looked into.

    Args:
        values: as they were sent.
        project: the checkout of this worker.
        where: what messages call them.

    Raises:
        ParamsError: a sentence for each that is not so: what was found, and which setting of the worker allows it.
    """
    params = check(values, where)
    _require_plain(values)
    if problems := list(_problems(values, _Allowed(project))):
        raise ParamsError("\n".join(problems))
    return params


def _require_plain(values: dict[str, Any]) -> None:
    """What is written as the checkout's params.yaml must be read again as the same."""
    try:
        text = yaml_text(values)
        if len(text) <= MAX_BYTES and parse_yaml(text) == values:
            return
    except (yaml.YAMLError, RecursionError, ParamsError):
        pass
    raise ParamsError(
        f"the parameters of this run are no plain values of a params.yaml, of {MAX_BYTES} bytes at most: send what "
        "`podium params show` prints"
    )


def require_name(name: str, values: dict[str, Any]) -> None:
    """The checkout of a sent run must have the name that its parameters give it.

    Raises:
        ParamsError: it has another.
    """
    key = key_of(values)
    if not CHECKOUT_NAME.fullmatch(name) or not name.endswith(f"-{key}"):
        raise ParamsError(f"checkout_name={_quoted(name)}: these parameters have a checkout PRESET-{key}, or set-{key}")


def require_stages(names: Sequence[str], plan: Plan) -> None:
    """The stages of a sent run must be some of those that its parameters have, each once.

    Raises:
        ParamsError: others are among them.
    """
    if others := [name for name in names if name not in plan]:
        raise ParamsError(f"names={_quoted(others[0])}: these parameters have the stages {', '.join(plan)}")
    if not names or len(set(names)) < len(names):
        raise ParamsError(f"names={', '.join(names) or 'nothing'}: send at least one stage, and each of them once")


def require_releases(released: Mapping[str, Sequence[str]], values: dict[str, Any]) -> None:
    """Releases that a sent run compares with must be of its entries, and named as releases are.

    Raises:
        ParamsError: others are among them.
    """
    for name, sent in released.items():
        texts = [sent] if isinstance(sent, str) else sent
        if bad := [text for text in texts if not (isinstance(text, str) and CHOSEN.fullmatch(text))]:
            raise ParamsError(f"released={_quoted(bad[0])}: a release is named TAG@COMMIT")
        if name not in values["downstream"]:
            raise ParamsError(f"released={_quoted(name)}: these parameters have no such entry of downstream")


def _rules(values: dict[str, Any], allowed: _Allowed) -> Iterator[tuple[str, Callable[[Any], bool], str]]:
    """Yield the name of each parameter that names something outside of a run, what it may be, and what allows that."""
    reads = f"read its folder `inputs` and what its {INPUT_ROOTS}"
    for name in find_parameters(values, READ):
        yield name, allowed.reads, reads
    for name in find_parameters(values, (*NAMED, "base_model.repository")):
        yield name, lambda given: allowed.finds_at_hub(given) or allowed.reads(given), reads
    written = list(find_parameters(values, WRITTEN))
    sections = {f"downstream.{name}.ipu": entry["ipu"] for name, entry in values["downstream"].items()}
    for section, jobs in {"ipu": values["ipu"], **sections}.items():
        for job, keys in jobs.items():
            if isinstance(keys, dict) and keys.get(IPU_CACHE) not in IPU_CACHE_OFF:
                written.append(f"{section}.{job}.{IPU_CACHE}")
    for name in written:
        home = _home_of(name)
        own = f"{home}/ of its checkout and " if home else ""
        yield name, functools.partial(allowed.writes, name), f"write to {own}what its {TARGETS}"
    if values["publish"]["target"] == "hub":
        for name in find_parameters(values, ("downstream.*.publish.repository",)):
            yield name, allowed.publishes, f"publish to the repositories that its {TARGETS}"


def _problems(values: dict[str, Any], allowed: _Allowed) -> Iterator[str]:
    for name, may_be, what in _rules(values, allowed):
        sent = value_at(values, name)
        if not allowed.says(name, sent) and not may_be(sent):
            yield f"{name}={_quoted(sent)}: this worker lets sent runs {what} and its own {artifacts.PARAMS} name"
    own, sent = allowed.params["publish"], values["publish"]
    for key, careful in (("private", True), ("review", True), ("examples", False)):
        if sent["target"] == "hub" and own[key] is careful and sent[key] is not careful:
            yield (
                f"publish.{key}={str(sent[key]).lower()}: this worker's own {artifacts.PARAMS} says "
                f"{str(careful).lower()}, which a sent run cannot take back; change it there"
            )


class _Allowed:
    """The settings of this worker."""

    def __init__(self, project: Path) -> None:
        self.project = project.resolve()
        targets = [word.strip() for word in os.environ.get(TARGETS, "").split(",") if word.strip()]
        self._urls = [word for word in targets if "://" in word]
        self._folders = [Path(word).resolve() for word in targets if os.path.isabs(word)]
        self._repositories = [word for word in targets if "://" not in word and not os.path.isabs(word)]
        roots = [word for word in os.environ.get(INPUT_ROOTS, "").split(os.pathsep) if word]
        self._roots = [self.project / "inputs", *(self.project / word for word in roots)]

    @functools.cached_property
    def params(self) -> dict[str, Any]:
        """The params.yaml of this worker's checkout."""
        return read_yaml(self.project / artifacts.PARAMS)

    def says(self, name: str, value: Any) -> bool:
        """Return whether the worker's own params.yaml, or one of its presets, has this value for a parameter.

        A parameter of an entry may have the value in any entry.
        """
        everywhere = (re.sub(r"^downstream\.[^.]+", "downstream.*", name),)
        sources = [self.params, *_presets_of(self.project / artifacts.PRESETS)]
        return any(value in find_parameters(source, everywhere).values() for source in sources)

    def reads(self, given: str) -> bool:
        """Whether a sent run may read a path.

        Links in `inputs` are the owner's, and followed; what others may write to, a root of PODIUM_INPUT_ROOTS, is not
        left through a link.
        """
        return self._stays_in(Path(given), Path("inputs")) or _is_in((self.project / given).resolve(), self._roots)

    def finds_at_hub(self, name: str) -> bool:
        """Return whether a name is of the Hub, and not of a file or folder here."""
        return bool(HUB_NAME.fullmatch(name)) and not os.path.lexists(self.project / name)

    def writes(self, name: str, given: Any) -> bool:
        """Whether a sent run may write to a folder or URL."""
        if not isinstance(given, str):
            return False
        if "://" in given:
            ends = [f"{url.rstrip('/')}/" for url in self._urls]
            return ".." not in given.split("/") and any(f"{given.rstrip('/')}/".startswith(end) for end in ends)
        if name.endswith(f".{IPU_CACHE}") and not os.path.isabs(given):
            return False  # it counts from wherever the job runs
        is_release = name.endswith(FOLDER_OF_RELEASE)  # replaces its folder, which must not be a root itself
        path, home = Path(given), _home_of(name)
        if home is not None and ".." not in path.parts and self._stays_in(path.parent if is_release else path, home):
            return True
        path = (self.project / given).resolve()
        return _is_in(path.parent if is_release else path, self._folders)

    def publishes(self, repository: str) -> bool:
        """Whether a sent run may publish to a repository of the Hub."""
        named = HUB_NAME.fullmatch(repository)
        return bool(named) and any(fnmatch.fnmatchcase(repository, one) for one in self._repositories)

    def _stays_in(self, path: Path, home: Path) -> bool:
        if path.is_relative_to(self.project):
            path = path.relative_to(self.project)
        return ".." not in path.parts and path.is_relative_to(home)


def _home_of(name: str) -> Path | None:
    """Where in the checkout what a parameter names may always be written."""
    if name.endswith(FOLDER_OF_RELEASE):
        return artifacts.RELEASES
    return artifacts.RUNS / "tracking" if name == TRACKING else None


@functools.cache
def _presets_of(folder: Path) -> list[Mapping[str, Any]]:
    """All presets, read once: there are dozens, and the process is one run's."""
    return [read_preset(name, folder).values for name in preset_names(folder)]


def _is_in(path: Path, roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root.resolve()) for root in roots)


def _quoted(sent: Any) -> str:
    text = shown(str(sent))
    return f"'{text if len(text) <= SHOWN else text[:SHOWN] + '…'}'"
