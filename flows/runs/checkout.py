"""A run with overrides works in a checkout of its own, so that the user's params.yaml is never rewritten.

The checkout holds the code, `inputs` as a link, and the resolved params.yaml; it shares the DVC cache of
the project, so that stages whose parameters are the same are restored, not run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import sha256_of, write_text
from tasks.params.overlays import base_of
from tasks.params.schema import Params, with_value
from tasks.params.strict_yaml import value_at, yaml_text
from tasks.plan.composing import compose, remove_gone, write_plan
from tasks.plan.dvc_records import read_settings
from tasks.plan.named_files import NAMED, READ, WRITTEN, check_given, check_written, find_parameters
from tasks.plan.plan_file import Plan, read_plan
from tasks.plan.stage_kinds import RESOLVED, hash_of_parameters
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

CODE = (*artifacts.SOURCES, "pyproject.toml", ".dvcignore")
CODE_ENDINGS = (".css", ".j2", ".js", ".py")
"""Of files in folders of code; others, such as an editor leaves, make no other stages."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""What a run can be called."""
SECRET = re.compile(r"password|passphrase|secret|token|credential|connection_string|(account|access)_key")
"""Names of DVC's settings that are secrets."""


def require_project(folder: Path) -> None:
    """The flow must run in a checkout of the project.

    Raises:
        ParamsError: it does not; says what to set.
    """
    if not (folder / "dvc.yaml").is_file():
        raise ParamsError(f"{folder} holds no dvc.yaml: run from the project's folder, also a worker")


@dataclass(frozen=True)
class Checkout:
    """The folder that a run works in, as its parameters have it, whether it is there yet or not."""

    project: Path
    folder: Path
    """The project itself, or a folder under runs/."""
    values: dict[str, Any]
    """The values of params.yaml in the folder; relative paths start there."""
    composed: dict[str, Any]
    """The values of plan.yaml in the folder."""
    plan: Plan
    """Every stage of dvc.yaml with these."""

    @property
    def name(self) -> str:
        """The name of its run; "." for the project's own folder."""
        return "." if self.folder == self.project else self.folder.name


def checkout_of(project: Path, values: dict[str, Any], params: Params, folder: Path) -> Checkout:
    """Describe the checkout of these parameters; nothing is written.

    Args:
        project: paths of the parameters count from it.
        values: the resolved parameters.
        params: the same, checked.
        folder: what `folder_of` says.

    Raises:
        InputError: dvc.yaml cannot be used.
    """
    if folder != project:
        # `runs` may be a link: then ".." of a checkout is another folder than its name says.
        moved = dict(_moved_paths(values, project.resolve(), folder.resolve()))
        values = _with_paths(values, moved)
        for name, path in moved.items():
            params = with_value(params, name.split("."), path)
    composed = compose(params)
    return Checkout(project, folder, values, composed, read_plan(project, composed))


def check_inputs(root: Path, values: dict[str, Any], plan: Plan) -> None:
    """The files and folders that the parameters name must be on this host and readable, or a place to write to.

    What a flow looks at wherever it runs; `podium run` looks at more before it starts one (flows/checks).

    Raises:
        ParamsError: everything that is not so, by its parameter.
    """
    if problems := [*check_given(values, root), *check_written(values, root, plan)]:
        raise ParamsError("\n".join(problems))


def prepare(checkout: Checkout, say: Callable[[str], None] = print) -> None:
    """Make the folder a run works in: the project itself, or its own checkout under runs/, its code brought up to date.

    Args:
        checkout: the folder.
        say: told what went away with stages that these parameters do not have.
    """
    if checkout.folder == checkout.project:
        write_plan(checkout.folder, checkout.composed)
        remove_gone(checkout.folder, say)
        _mark_resolved(checkout)
        return
    checkout.folder.mkdir(parents=True, exist_ok=True)
    root, folder = checkout.project.resolve(), checkout.folder.resolve()
    for part in CODE:
        if (root / part).is_file():
            shutil.copy2(root / part, folder / part)
        else:
            shutil.rmtree(folder / part, ignore_errors=True)
            shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    _link(root / "inputs", folder / "inputs")
    _share_cache(root, folder)
    write_text(folder / artifacts.PARAMS, yaml_text(checkout.values))
    write_plan(folder, checkout.composed)
    _mark_resolved(checkout)


def _mark_resolved(checkout: Checkout) -> None:
    """Let stages skip the check of parameters that were checked here; a file edited since is checked again."""
    if base_of(None, checkout.folder) == checkout.values:
        os.environ[RESOLVED] = hash_of_parameters(checkout.folder)


def folder_of(
    root: Path,
    values: dict[str, Any],
    preset: str | None,
    overrides: Sequence[object],
    name: str | None = None,
    sent: bool = False,
) -> Path:
    """Where a run of these parameters works, whether it was prepared or not.

    The same parameters give the same folder, so that a run that was killed continues there: the project's own where
    nothing was laid over params.yaml, and a checkout under runs/ otherwise, or where the run has a name.

    Args:
        root: the project.
        values: the parameters.
        preset: the recipe that lies over the defaults; None: params.yaml counts.
        overrides: what was laid over it.
        name: what the run is called.
        sent: its stages go to workers, and the project's own folder is not theirs.

    Raises:
        ParamsError: that cannot be a name.
    """
    if name is not None:
        return own_folder(root, checked_name(name))
    if preset is None and not overrides and not sent:
        return root
    return own_folder(root, own_name(values, preset))


def checked_name(name: str) -> str:
    """The name of a run, which is one of a folder, too.

    Raises:
        ParamsError: it cannot be one.
    """
    if not NAME.fullmatch(name):
        raise ParamsError(
            f"--name {name[:100]!r}: a run's name has letters, digits, - _ and . alone, 80 at most, and begins with a "
            "letter or digit"
        )
    return name


def own_name(values: dict[str, Any], preset: str | None) -> str:
    """The name of the checkout of these parameters: the same on every host."""
    return f"{preset or 'set'}-{key_of(values)}"


def key_of(values: dict[str, Any]) -> str:
    """Eight digits that stand for parameters."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def own_folder(root: Path, name: str) -> Path:
    """Where the checkout `name` is."""
    return root / artifacts.CHECKOUTS / name


def code_hashes(root: Path) -> dict[str, str]:
    """Twelve digits of the SHA-256 of each part of the code that a checkout gets: what workers must agree on."""
    return {part: _hash_of(root / part) for part in CODE}


def _hash_of(path: Path) -> str:
    files = [path] if path.is_file() else sorted(file for ending in CODE_ENDINGS for file in path.rglob(f"*{ending}"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path).as_posix()} {sha256_of(file)}\n".encode())
    return digest.hexdigest()[:12]


def seen_from(values: dict[str, Any], root: Path, folder: Path) -> dict[str, Any]:
    """The same values with relative paths rewritten to mean the same place from `folder`."""
    return _with_paths(values, dict(_moved_paths(values, root, folder)))


def _with_paths(values: dict[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    rewritten: dict[str, Any] = json.loads(json.dumps(values))
    for name, path in paths.items():
        section, _, key = name.rpartition(".")
        value_at(rewritten, section)[key] = path
    return rewritten


def _moved_paths(values: dict[str, Any], root: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Parameters that name relative paths, and how each is written in `folder`."""
    paths = find_parameters(values, (*READ, *WRITTEN))
    names = {name: given for name, given in find_parameters(values, NAMED).items() if (root / given).exists()}
    for name, given in (paths | names).items():
        if not ("://" in given or os.path.isabs(given)):
            yield name, _moved(given, root, folder)


def _moved(given: str, root: Path, folder: Path) -> str:
    """A path relative to `root` as it is written in `folder`, where the link `inputs` stands for that of `root`."""
    path = Path(given)
    if ".." in path.parts:  # what it means is known to the file system alone, as links may stand before it
        path = Path(os.path.relpath(os.path.realpath(root / path), root))
    if path.parts[:1] == ("inputs",):
        return str(path)
    return os.path.relpath(root / path, folder)


def _link(source: Path, target: Path) -> None:
    if not target.is_symlink():
        target.symlink_to(os.path.relpath(source, target.parent))


def _share_cache(root: Path, folder: Path) -> None:
    """Give the checkout a .dvc of its own with the project's settings and the project's cache."""
    source, target = root / ".dvc", folder / ".dvc"
    target.mkdir(exist_ok=True)
    config = read_settings([source / "config", *_local_config(source, target)])
    for section in config.sections():
        url = config.get(section, "url", fallback="")
        if url and "://" not in url and not os.path.isabs(url):  # relative to the folder of the config file
            config.set(section, "url", os.path.relpath(source / url, target))
    # No git inside: the checkout is a folder that the project's git ignores.
    config.read_dict({"core": {"no_scm": "true", "autostage": "false"}})
    cache = source / config.get("cache", "dir", fallback="cache")
    config.read_dict({"cache": {"dir": os.path.relpath(cache, target)}})
    with (target / "config").open("w", encoding="utf-8") as stream:
        config.write(stream)


def _local_config(source: Path, target: Path) -> list[Path]:
    """The config.local whose settings may be written into the checkout's; one that holds a secret is only linked to.

    Raises:
        ParamsError: it holds a secret beside a path that would mean another place from the checkout.
    """
    path, link = source / "config.local", target / "config.local"
    link.unlink(missing_ok=True)
    config = read_settings([path])
    options = [(section, *option) for section in config.sections() for option in config.items(section)]
    if not any(SECRET.search(name) or "@" in value.partition("://")[2] for _, name, value in options):
        return [path]
    for section, name, value in options:
        if name in ("url", "dir") and "://" not in value and not os.path.isabs(value):
            raise ParamsError(
                f"{path} holds a secret, which is not copied, and in [{section}] the relative {name} = {value}: state "
                f"that absolutely, or in {source / 'config'}"
            )
    _link(path, link)
    return []
