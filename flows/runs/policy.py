"""Policy of a worker: which parameters it accepts in runs that it receives.

Anyone who can reach the Prefect server can send a run with any values. Only the worker's own settings decide:
PODIUM_INPUT_ROOTS, PODIUM_TARGETS, and the params.yaml and presets of its own checkout.
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

from flows.runs.checkout import params_key
from tasks.downstream.inference.fetched_releases import CHOSEN
from tasks.params.overlays import list_preset_names, read_preset
from tasks.params.schema import Params, validate_params
from tasks.params.sections import HUB_NAME
from tasks.params.strict_yaml import MAX_BYTES, parse_yaml, read_yaml, value_at, yaml_text
from tasks.plan.named_files import NAMED, READ, WRITTEN, escape_name, find_parameters
from tasks.plan.plan_file import Plan
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

INPUT_ROOTS = "PODIUM_INPUT_ROOTS"
"""Folders that sent runs may read in addition to the checkout's `inputs`, separated by os.pathsep."""
TARGETS = "PODIUM_TARGETS"
"""Targets that sent runs may write to in addition to the checkout, separated by commas: folders, URLs, and
repositories (team/podium-*)."""
TRACKING, RELEASE_FOLDER = "tracking.folder", ".publish.folder"
"""Parameters that name a folder to write; the second one belongs to an entry."""
CHECKPOINTS = "checkpoint.remote"
"""Parameter that names a folder that jobs also resume from, so that only the worker's own value is allowed."""
ACCOUNTS = ("trackio", "wandb", "mlflow")
"""Trackers that use an account or a server of the worker's environment."""
CHECKOUT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}-[0-9a-f]{8}")
IPU_CACHE = "executable_cache_dir"
"""The only key of an ipu_config.json that names a folder."""
IPU_CACHE_OFF = (None, "", "disabled")
MAX_QUOTED = 80
"""Maximum characters of a received text in a message."""


def require_parameters(values: dict[str, Any], project: Path, where: str = "the parameters of this run") -> Params:
    """Check received parameters against this worker's policy, and return them.

    No file that they name is opened.

    Args:
        values: the parameters as received.
        project: the checkout of this worker.
        where: name of the parameters in messages.

    Raises:
        ParamsError: one sentence per violation, with the value and the worker's setting that would allow it.
    """
    params = validate_params(values, where)
    _require_plain(values)
    if problems := list(_problems(values, _Policy(project))):
        raise ParamsError("\n".join(problems))
    return params


def _require_plain(values: dict[str, Any]) -> None:
    """Require that the values survive being written to params.yaml and read back.

    Raises:
        ParamsError: they do not, or the file would be too large.
    """
    try:
        text = yaml_text(values)
        if len(text) <= MAX_BYTES and parse_yaml(text) == values:
            return
    except (yaml.YAMLError, RecursionError, ParamsError):
        pass
    raise ParamsError(
        f"the parameters of this run are not plain values of a params.yaml of at most {MAX_BYTES} bytes. Send the "
        "output of `podium params show`"
    )


def require_checkout_name(name: str, values: dict[str, Any]) -> None:
    """Require the checkout name that the parameters of a sent run imply.

    Raises:
        ParamsError: the name differs.
    """
    key = params_key(values)
    if not CHECKOUT_NAME.fullmatch(name) or not name.endswith(f"-{key}"):
        raise ParamsError(f"checkout_name={_quote(name)}: must be PRESET-{key} or set-{key} for these parameters")


def require_stages(names: Sequence[str], plan: Plan) -> None:
    """Require that a sent run names stages of its own plan, each once.

    Raises:
        ParamsError: a stage is unknown or repeated, or there is none.
    """
    if others := [name for name in names if name not in plan]:
        raise ParamsError(f"names={_quote(others[0])}: the stages of these parameters are {', '.join(plan)}")
    if not names or len(set(names)) < len(names):
        raise ParamsError(f"names={', '.join(names) or 'nothing'}: send at least one stage, and each stage only once")


def require_releases(released: Mapping[str, Sequence[str]], values: dict[str, Any]) -> None:
    """Require that the releases that a sent run compares with have valid names and belong to its entries.

    Raises:
        ParamsError: a name or an entry is invalid.
    """
    for name, sent in released.items():
        texts = [sent] if isinstance(sent, str) else sent
        if bad := [text for text in texts if not (isinstance(text, str) and CHOSEN.fullmatch(text))]:
            raise ParamsError(f"released={_quote(bad[0])}: the name of a release is TAG@COMMIT")
        if name not in values["downstream"]:
            raise ParamsError(f"released={_quote(name)}: downstream has no such entry in these parameters")


def _rules(values: dict[str, Any], policy: _Policy) -> Iterator[tuple[str, Callable[[Any], bool], str]]:
    """Yield each parameter that names something outside of a run, its test, and the permission for messages."""
    readable = f"read its folder `inputs` and what its {INPUT_ROOTS}"
    for name in find_parameters(values, READ):
        yield name, policy.may_read, readable
    for name in find_parameters(values, (*NAMED, "base_model.repository", "downstream.*.distill.repository")):
        yield name, lambda name: policy.is_hub_name(name) or policy.may_read(name), readable
    written = list(find_parameters(values, WRITTEN))
    sections = {f"downstream.{name}.ipu": entry["ipu"] for name, entry in values["downstream"].items()}
    for section, jobs in {"ipu": values["ipu"], **sections}.items():
        for job, keys in jobs.items():
            if isinstance(keys, dict) and keys.get(IPU_CACHE) not in IPU_CACHE_OFF:
                written.append(f"{section}.{job}.{IPU_CACHE}")
    for name in written:
        if name == CHECKPOINTS:
            yield name, lambda _: False, "resume from, and copy checkpoints to, what its presets"
            continue
        home = _default_folder(name)
        prefix = f"{home}/ of its checkout and " if home else ""
        yield name, functools.partial(policy.may_write, name), f"write to {prefix}what its {TARGETS}"
    if values["publish"]["target"] == "hub":
        for name in find_parameters(values, ("downstream.*.publish.repository",)):
            yield name, policy.may_publish, f"publish to the repositories that its {TARGETS}"


def _problems(values: dict[str, Any], policy: _Policy) -> Iterator[str]:
    for name, may_be, what in _rules(values, policy):
        sent = value_at(values, name)
        if not policy.is_own_value(name, sent) and not may_be(sent):
            yield f"{name}={_quote(sent)}: this worker lets sent runs {what} and its own {artifacts.PARAMS} name"
    local, sent = policy.params["publish"], values["publish"]
    fixed = {"publish.signing": (sent["signing"], local["signing"])}
    for key, careful in (("private", True), ("review", True), ("examples", False)):
        if sent["target"] == "hub" and local[key] is careful:
            fixed[f"publish.{key}"] = (sent[key], careful)
    local, sent = policy.params["tracking"], values["tracking"]
    if accounts := [name for name in sent["backends"] if name in ACCOUNTS]:
        fixed["tracking.backends"] = (accounts, [name for name in accounts if name in local["backends"]])
        fixed["tracking.project"] = (sent["project"], local["project"])
    for key, (value, required) in fixed.items():
        if value != required:
            yield (
                f"{key}={_quote_yaml(value)}: the {artifacts.PARAMS} of this worker requires {_quote_yaml(required)}, "
                "and a sent run cannot override it; change it there"
            )


class _Policy:
    """Settings of this worker."""

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
        """params.yaml of this worker's checkout."""
        return read_yaml(self.project / artifacts.PARAMS)

    def is_own_value(self, name: str, value: Any) -> bool:
        """Return whether the worker's params.yaml or one of its presets has this value for a parameter.

        For a parameter of an entry, the value of any entry counts.
        """
        everywhere = (re.sub(r"^downstream\.[^.]+", "downstream.*", name),)
        sources = [self.params, *_read_presets(self.project / artifacts.PRESETS)]
        return any(value in find_parameters(source, everywhere).values() for source in sources)

    def may_read(self, path: str) -> bool:
        """Return whether a sent run may read a path.

        Links in `inputs` are the owner's own and are followed. Others may write to the roots in PODIUM_INPUT_ROOTS, so
        that links must not lead out of them.
        """
        return self._stays_in(Path(path), Path("inputs")) or _is_inside((self.project / path).resolve(), self._roots)

    def is_hub_name(self, name: str) -> bool:
        """Return whether a name is that of a Hub repository, and not of a local file or folder."""
        return bool(HUB_NAME.fullmatch(name)) and not os.path.lexists(self.project / name)

    def may_write(self, name: str, target: Any) -> bool:
        """Return whether a sent run may write to a folder or URL."""
        if not isinstance(target, str):
            return False
        if "://" in target:
            ends = [f"{url.rstrip('/')}/" for url in self._urls]
            return ".." not in target.split("/") and any(f"{target.rstrip('/')}/".startswith(end) for end in ends)
        if name.endswith(f".{IPU_CACHE}") and not os.path.isabs(target):
            return False  # it would be relative to the folder that the job runs in
        is_release = name.endswith(RELEASE_FOLDER)  # a release replaces its folder, which must not be a root itself
        path, home = Path(target), _default_folder(name)
        if home is not None and ".." not in path.parts and self._stays_in(path.parent if is_release else path, home):
            return True
        path = (self.project / target).resolve()
        return _is_inside(path.parent if is_release else path, self._folders)

    def may_publish(self, repository: str) -> bool:
        """Return whether a sent run may publish to a Hub repository."""
        named = HUB_NAME.fullmatch(repository)
        return bool(named) and any(fnmatch.fnmatchcase(repository, pattern) for pattern in self._repositories)

    def _stays_in(self, path: Path, home: Path) -> bool:
        if path.is_relative_to(self.project):
            path = path.relative_to(self.project)
        return ".." not in path.parts and path.is_relative_to(home)


def _default_folder(name: str) -> Path | None:
    """Return the folder of the checkout in which a parameter may always name its target."""
    if name.endswith(RELEASE_FOLDER):
        return artifacts.RELEASES
    return artifacts.RUNS / "tracking" if name == TRACKING else None


@functools.cache
def _read_presets(folder: Path) -> list[Mapping[str, Any]]:
    """Return all presets; cached, because there are dozens and the process serves one run."""
    return [read_preset(name, folder).values for name in list_preset_names(folder)]


def _is_inside(path: Path, roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root.resolve()) for root in roots)


def _quote_yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def _quote(sent: Any) -> str:
    text = escape_name(str(sent))
    return f"'{text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + '…'}'"
