"""Checkouts: folders in which runs with overrides work, so that your params.yaml is never rewritten.

A checkout has the code, a link to `inputs`, and the resolved params.yaml. It shares the project's DVC cache, so that
stages with the same parameters are restored instead of run again.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.core.files import sha256_of, write_text
from tasks.params.overlays import read_base
from tasks.params.schema import Params, replace_value
from tasks.params.strict_yaml import value_at, yaml_text
from tasks.plan import stages
from tasks.plan.dvc_records import find_cache, read_settings
from tasks.plan.named_files import NAMED, READ, WRITTEN, check_input_paths, check_output_folders, find_parameters
from tasks.plan.plan_file import Plan, make_plan
from tasks.plan.stage_kinds import RESOLVED, hash_of_parameters
from tasks.plan.writing import remove_stale, write_plan, write_project_plan
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

CODE = (*artifacts.SOURCES, "pyproject.toml", ".dvcignore")
CODE_ENDINGS = (".css", ".j2", ".js", ".py")
"""Suffixes of files that count as code. Other files, such as an editor's backups, do not change stages."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""Valid names of runs."""
SECRET = re.compile(r"password|passphrase|secret|token|credential|connection_string|(account|access)_key")
"""Names of DVC settings that contain secrets."""


def require_project(folder: Path) -> None:
    """Require that the flow runs in the project or a checkout of it.

    Raises:
        ParamsError: it does not.
    """
    if not (folder / "dvc.yaml").is_file():
        raise ParamsError(f"{folder} has no dvc.yaml: start the run, or the worker, in the project's folder")


@dataclass(frozen=True)
class Checkout:
    """Folder of a run with its parameters and plan. The folder may not exist yet."""

    project: Path
    folder: Path
    """The project itself, or a folder under runs/."""
    values: dict[str, Any]
    """Values of params.yaml in the folder, with paths relative to it."""
    definitions: dict[str, Any]
    """All stages with these values as in dvc.yaml."""
    plan: Plan
    """The same stages in order."""

    @property
    def name(self) -> str:
        """Name of its run; "." for the project folder."""
        return "." if self.folder == self.project else self.folder.name


def describe_checkout(project: Path, values: dict[str, Any], params: Params, folder: Path) -> Checkout:
    """Describe the checkout of a run; write nothing.

    Args:
        project: project folder. Paths in the parameters are relative to it.
        values: resolved parameters.
        params: the same parameters, validated.
        folder: folder from `choose_folder`.
    """
    if folder != project:
        # `runs` may be a link. Then ".." of a checkout is not the folder its path suggests.
        values = rebase_paths(values, project.resolve(), folder.resolve())
        for name in find_parameters(values, (*READ, *WRITTEN, *NAMED)):
            params = replace_value(params, name.split("."), value_at(values, name))
    definitions = stages.define(params)
    return Checkout(project, folder, values, definitions, make_plan(definitions))


def check_inputs(root: Path, values: dict[str, Any], plan: Plan) -> None:
    """Check that the files and folders in the parameters are readable, or writable for outputs, on this host.

    Every flow checks this. `podium run` checks more before it starts one (flows/checks).

    Raises:
        ParamsError: lists all problems with their parameters.
    """
    if problems := [*check_input_paths(values, root), *check_output_folders(values, root, plan)]:
        raise ParamsError("\n".join(problems))


def prepare_checkout(checkout: Checkout, say: Callable[[str], None] = print) -> None:
    """Prepare the folder of a run: update parameters and plan and, in a checkout under runs/, also the code.

    Args:
        checkout: checkout to prepare.
        say: called with a message for each output removed because its stage is no longer in the plan.
    """
    if checkout.folder == checkout.project:
        write_project_plan(checkout.folder, checkout.definitions)
        remove_stale(checkout.folder, say)
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
    if not (folder / "inputs").is_symlink():
        (folder / "inputs").symlink_to(os.path.relpath(root / "inputs", folder))
    share_cache(root, folder)
    write_text(folder / artifacts.PARAMS, yaml_text(checkout.values))
    write_plan(folder, checkout.definitions)
    remove_stale(folder, say)
    _mark_resolved(checkout)


def _mark_resolved(checkout: Checkout) -> None:
    """Tell stages that these parameters are validated. They validate a file again if it was edited since."""
    if read_base(None, checkout.folder) == checkout.values:
        os.environ[RESOLVED] = hash_of_parameters(checkout.folder)


def choose_folder(
    root: Path,
    values: dict[str, Any],
    preset: str | None,
    overrides: Sequence[object],
    name: str | None = None,
    sent: bool = False,
) -> Path:
    """Return the folder of a run with these parameters. It may not exist yet.

    The same parameters give the same folder, so that a killed run can continue. A run of the unchanged params.yaml
    works in the project folder; runs with a preset, overrides or a name work in a checkout under runs/.

    Args:
        root: project folder.
        values: resolved parameters.
        preset: preset that extends the defaults; None: params.yaml.
        overrides: overrides of single parameters.
        name: name of the run.
        sent: its stages run on workers, which cannot use the project folder.

    Raises:
        ParamsError: the name is invalid.
    """
    if name is not None:
        return checkout_folder(root, check_name(name))
    if preset is None and not overrides and not sent:
        return root
    return checkout_folder(root, default_name(values, preset))


def check_name(name: str) -> str:
    """Validate and return the name of a run, which is also the name of its folder.

    Raises:
        ParamsError: the name is invalid.
    """
    if not NAME.fullmatch(name):
        raise ParamsError(
            f"--name {name[:100]!r} is not valid: use up to 80 letters, digits, '-', '_' and '.', and begin with a "
            "letter or digit"
        )
    return name


def default_name(values: dict[str, Any], preset: str | None) -> str:
    """Return the default name of the checkout for these parameters. It is the same on every host."""
    return f"{preset or 'set'}-{params_key(values)}"


def params_key(values: dict[str, Any]) -> str:
    """Return eight hexadecimal digits that identify parameters."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def checkout_folder(root: Path, name: str) -> Path:
    """Return the folder of the checkout `name`."""
    return root / artifacts.CHECKOUTS / name


def hash_code(root: Path) -> dict[str, str]:
    """Return twelve digits of the SHA-256 of each part of the code. Workers must have the same code."""
    hashes = {}
    for part in CODE:
        path, digest = root / part, hashlib.sha256()
        every = (file for ending in CODE_ENDINGS for file in path.rglob(f"*{ending}"))
        for file in [path] if path.is_file() else sorted(every):
            digest.update(f"{file.relative_to(path).as_posix()} {sha256_of(file)}\n".encode())
        hashes[part] = digest.hexdigest()[:12]
    return hashes


def rebase_paths(values: dict[str, Any], root: Path, folder: Path) -> dict[str, Any]:
    """Return the values with relative paths rewritten, so that they refer to the same files from `folder`.

    `folder` has a link to `inputs` of `root`.
    """
    rewritten: dict[str, Any] = json.loads(json.dumps(values))
    paths = find_parameters(values, (*READ, *WRITTEN))
    names = {name: text for name, text in find_parameters(values, NAMED).items() if (root / text).exists()}
    for name, text in (paths | names).items():
        path = Path(text)
        if "://" in text or path.is_absolute():
            continue
        if ".." in path.parts:  # only the file system can resolve "..", as earlier parts may be links
            path = Path(os.path.relpath(os.path.realpath(root / path), root))
        section, _, key = name.rpartition(".")
        inside = path.parts[:1] == ("inputs",)
        value_at(rewritten, section)[key] = str(path) if inside else os.path.relpath(root / path, folder)
    return rewritten


def share_cache(root: Path, folder: Path) -> None:
    """Create a .dvc in the checkout with the project's settings and cache."""
    source, target = root / ".dvc", folder / ".dvc"
    target.mkdir(exist_ok=True)
    config = read_settings([source / "config", *_local_config(source, target)])
    for section in config.sections():
        url = config.get(section, "url", fallback="")
        if url and "://" not in url and not os.path.isabs(url):  # relative to the folder of the config file
            config.set(section, "url", os.path.relpath(source / url, target))
    # A checkout has no git of its own, and the project's git ignores it.
    config.read_dict({"core": {"no_scm": "true", "autostage": "false"}})
    config.read_dict({"cache": {"dir": os.path.relpath(find_cache(root), target)}})
    with (target / "config").open("w", encoding="utf-8") as stream:
        config.write(stream)


def _local_config(source: Path, target: Path) -> list[Path]:
    """Return config.local if its settings may be copied into the checkout. If it has a secret, link to it instead.

    Raises:
        ParamsError: it has both a secret and a relative path, which would refer to another folder from the checkout.
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
                f"{path} contains a secret, so it is not copied, but also the relative path {name} = {value} in "
                f"[{section}]: make the path absolute, or move it to {source / 'config'}"
            )
    link.symlink_to(os.path.relpath(path, target))
    return []
