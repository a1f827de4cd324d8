"""Rules that are easier to hold by a test than by memory: who imports whom, and what dvc.yaml must name."""

import ast
import functools
import graphlib
import re
import sys
from pathlib import Path

import pytest

from tasks.downstream.gate.subject import make_subject
from tasks.params.entries import entries
from tasks.params.schema import load_params
from tasks.plan.plan_file import VARIABLE
from tasks.plan.stages import OPTIONS, STAGES, define
from tasks.plan.writing import plan_text
from tasks.stage import artifacts
from tests.places import ROOT
from tests.plans import everything, whole_plan
from tests.source_files import (
    FRAME,
    HELPERS,
    PACKAGES,
    REGISTRY,
    import_closure,
    imported_modules,
    lies_in,
    module_file,
    name_of,
    nodes_of,
    sources,
    tree_of,
)

# package imported -> files that may import it (a folder ends in "/")
ALLOWED = {
    "prefect": (
        "flows/",
        "tests/browser/test_prefect_ui.py",
        "tests/browser/test_start_form.py",
        "tests/flows/",
        "tests/load/",
    ),
    "dvc": ("flows/dvc/child.py",),  # a process of its own
    "great_expectations": ("tasks/validation/validators.py",),
    "huggingface_hub": ("tasks/downstream/card.py", "tasks/models/", "tasks/records/", "tasks/release/", "tests/"),
    "fsspec": ("tasks/host/checkpoint_sync.py", "tasks/stage/exchange.py", "tests/"),
    "datasets": ("tasks/records/hub_inputs.py", "bench/", "tests/"),
    "transformers": ("ipu_model/models/transformers_encoder.py", "tasks/downstream/export/", "bench/", "tests/"),
    "torch": ("ipu_model/", "tasks/downstream/export/", "bench/", "tests/"),
    "wandb": ("tasks/tracking/track_wandb.py", "tests/tasks/"),
    "tensorboard": ("tasks/tracking/track_tensorboard.py", "tests/tasks/"),
    "mlflow": ("tasks/tracking/track_mlflow.py", "tests/tasks/"),
    "trackio": ("tasks/tracking/track_trackio.py", "tests/tasks/"),
    "poptorch": ("ipu_model/runtimes/ipu.py", "tests/doubles/", "tests/ipu_model/"),
    "flows": ("flows/", "tests/"),
    "tasks": ("flows/", "tasks/", "bench/", "tests/"),
    "ipu_model": (
        "ipu_model/",
        "tasks/pretraining/base_model.py",
        "tasks/host/launcher.py",
        "tasks/host/ledger.py",
        "tasks/jobs/device_job.py",
        "tasks/pretraining/rows/",
        "tasks/estimates/job_estimates.py",
        "tasks/params/overlays.py",
        "tasks/stage/fork_server.py",
        "tasks/stage/row_folders.py",
        "tasks/models/model_folders.py",
        "tasks/rows/row_files.py",
        "bench/",
        "tests/",
    ),
    "bench": ("bench/", "tests/bench/"),
    "pickle": ("ipu_model/models/weight_files.py", "tasks/stage/exchange.py"),  # an exception of it
}
DOCUMENTS = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)  # fmt: skip
MADE_BY_RUNS = (
    "data", "evaluation", "executables", "exports", "measurements", "metrics", "models", "plots", "predictions",
    "published", "released", "reports", "runs", "schemas", "site",
)  # fmt: skip


def folder_of(name):
    """The folder that knows the kind of the entry that a stage is of; None for one before all entries."""
    known = {entry.name: ROOT / entry.params.package().replace(".", "/") for entry in entries(everything())}
    item = name.partition("@")[2]
    return known.get(item.removesuffix("-cpu:bf16"))


WITHOUT_CIRCLES = ("flows", "tasks", "ipu_model")


@functools.cache
def imported_files(path):
    """The project's files that a file imports itself; of a module in a package, also the package's __init__."""
    names = {
        ".".join(parts[:count])
        for parts in (name.split(".") for name in imported_modules(path))
        if parts[0] in PACKAGES
        for count in range(1, len(parts) + 1)
    }
    return {file for name in names if (file := module_file(name)) is not None and file != path}


def circle(graph):
    """The names of nodes that reach one another, the first of them twice; none: []."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_nothing_imports_in_a_circle():
    """Imports inside functions count: a circle that only they hide is one all the same."""
    files = sources(*WITHOUT_CIRCLES)
    assert circle({path: imported_files(path) & set(files) for path in files}) == []


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_imports_between_the_folders_of_a_package_run_one_way(package):
    room = {path: path.relative_to(ROOT).parts[1] for path in sources(package) if path.name != "__init__.py"}
    imported = {name: set() for name in room.values()}
    for path, name in room.items():
        imported[name] |= {room[target] for target in imported_files(path) if target in room} - {name}
    assert circle(imported) == []


def is_helper(name):
    return name.startswith(HELPERS.replace("/", "."))


def test_helpers_of_ipu_model_need_the_standard_library_alone():
    imported = {name for path in sources(HELPERS) for name in imported_modules(path) if not is_helper(name)}
    assert {name.split(".")[0] for name in imported} <= set(sys.stdlib_module_names)


def test_nothing_uses_a_private_module_of_prefect():
    """Neither by an import nor by its name in a text: what is not documented may be another with any version."""
    private = re.compile(r"\bprefect(?:\.\w+)*\._\w+")
    texts = {
        name_of(path): f"{path.read_text(encoding='utf-8')} {imported_modules(path)}" for path in sources(*PACKAGES)
    }
    assert {name: private.findall(text) for name, text in texts.items() if private.search(text)} == {}


def may_import(here, name):
    allowed = None if is_helper(name) else ALLOWED.get(name.split(".")[0])
    return allowed is None or any(here == rule or (rule.endswith("/") and here.startswith(rule)) for rule in allowed)


def test_imports_point_down_only():
    imported = {name_of(path): imported_modules(path) for path in sources(*PACKAGES, "tests")}
    assert [f"{here}: {name}" for here, names in imported.items() for name in names if not may_import(here, name)] == []


BY_NAME = ("ipu_model/row_kinds", "ipu_model/heads")
"""Packages whose modules are imported by their names when they are needed, so that no other file lists them."""


def code_of(stage):
    return {dep for dep in stage.deps if dep.split("/")[0] in PACKAGES}


def makers_of(name):
    """The project's files that decide what a stage makes: all that its command can import, the frame left out."""
    stage = whole_plan()[name]
    needed = import_closure(module_file(module_of(stage)))
    if starts_device_jobs(stage):
        needed = needed | import_closure(ROOT / "ipu_model/__main__.py")
    made = {file for file in needed if file != REGISTRY and not file.endswith("/__init__.py")}
    if (folder := folder_of(name)) is not None:
        made = (made | parts_of(needed, folder)) - import_closure(folder / "params.py")
        tables = {entry.params.label_table for entry in entries(everything())} - {""}
        if "tasks/downstream/jobs/labels.py" in needed:
            made |= {name_of(folder / table) for table in tables if (folder / table).is_file()}
    return {file for file in made if not lies_in(file, FRAME)}


def module_of(stage):
    command = re.fullmatch(r"python -m tasks\.stage\.start (tasks\.[\w.]+)( \"\$DVC_STAGE\")?", stage.cmd)
    assert command, f"one simple command, not {stage.cmd!r}"
    return command[1]


def starts_device_jobs(stage):
    return "tasks/jobs/device_job.py" in import_closure(module_file(module_of(stage)))


def parts_of(needed, folder):
    """What a stage loads of its own kind: the parts of `Kind` for which its files ask the dictionary of kinds."""
    kind = folder / "kind.py"
    parts = {node.name: node for node in nodes_of(kind) if isinstance(node, ast.FunctionDef)}
    asking = [ROOT / file for file in needed if file.endswith(".py") and ROOT / REGISTRY in imported_files(ROOT / file)]
    todo = {node.attr for path in asking for node in nodes_of(path) if isinstance(node, ast.Attribute)} & set(parts)
    done, files = set(), set()
    while todo:
        done.add(part := todo.pop())
        nodes = list(ast.walk(parts[part]))
        todo |= {node.attr for node in nodes if isinstance(node, ast.Attribute)} & set(parts) - done
        modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
        files |= {name_of(kind)}.union(*(import_closure(module_file(module)) for module in modules))
    return {file for file in files if not file.endswith("/__init__.py")}


@pytest.mark.parametrize("name", sorted(whole_plan()))
def test_a_stage_names_the_packages_it_imports_and_depends_on_nothing_that_says_how_stages_run(name):
    """How processes are started, where checkpoints travel, who watches; a training, on the verdict of its rows."""
    stage = whole_plan()[name]
    needed, code = makers_of(name), code_of(stage)
    assert not [dep for dep in code if not (ROOT / dep).exists()]
    assert sorted(file for file in needed if not lies_in(file, code)) == [], f"{name}: deps lack these"
    assert not [dep for dep in code if lies_in(dep, FRAME)]
    parameters = {*stage.params.get("params.yaml", ())}
    assert not parameters & {"device", "device.launcher", "device.restarts", "checkpoint", "checkpoint.remote"}
    assert not [parameter for parameter in parameters if parameter.split(".")[0] == "tracking"]
    if name.split("@")[0] in ("pretrain", "finetune", "predict"):
        rows = [dep.rsplit("/", 1)[1] for dep in stage.deps if dep.startswith("data/rows/")]
        ending = "" if name.startswith("pretrain") else "-rows"
        assert {f"reports/validation/{part}{ending}.json" for part in rows} <= {*stage.deps}


@pytest.mark.parametrize("group", sorted({name.partition("@")[0] for name in whole_plan()}))
def test_stages_of_a_group_name_no_package_that_none_of_them_imports(group):
    """The table has the dependencies of a group once, for every kind of entry."""
    names = [name for name in whole_plan() if name.partition("@")[0] == group]
    needed = set().union(*map(makers_of, names))
    code = set.intersection(*(code_of(whole_plan()[name]) for name in names))
    unused = [dep for dep in code if not any(lies_in(file, [dep]) for file in needed) and not lies_in(dep, BY_NAME)]
    assert sorted(unused) == []


def test_a_new_kind_of_task_of_rows_or_head_is_no_part_of_what_a_stage_depends_on():
    new = ("tasks/downstream/new/spec.py", "ipu_model/heads/new.py", "ipu_model/row_kinds/new.py", "presets/new.yaml")
    for name, stage in whole_plan().items():
        assert [path for path in new if lies_in(path, stage.deps)] == [], f"{name} would run again"
        if any(out.startswith(("data/rows/", "data/row_shards/")) for out in stage.outs):
            kinds = [dep for dep in code_of(stage) if lies_in(dep, ["ipu_model/row_kinds"])]
            assert kinds, f"{name}: name the file of ipu_model/row_kinds that states its columns"


def test_no_command_has_a_word_that_params_yaml_may_choose():
    assert {stage.module for stage in STAGES if not re.fullmatch(r"[a-z_.]+", stage.module)} == set()
    text = plan_text(define(everything()))
    assert {variable.partition(".")[0] for variable in VARIABLE.findall(text)} == {"item", "key"}


def test_dvc_yaml_is_that_of_params_yaml():
    text = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
    assert text == plan_text(define(load_params(ROOT / "params.yaml"))), "write it with podium plan --write"


def test_no_kind_has_more_options_than_the_table_has_fields():
    assert max(len(entry.params.option_names) for entry in entries(everything())) <= OPTIONS


def test_a_stage_that_starts_device_jobs_depends_on_the_heads_of_its_own_jobs():
    heads = {entry.name: entry.params.head for entry in entries(everything())}
    heads |= {"phase1": "pretraining", "phase2": "pretraining", "squad-cpu:bf16": "question_answering"}
    starting = {name: stage for name, stage in whole_plan().items() if starts_device_jobs(stage)}
    assert starting
    for name, stage in starting.items():
        dependencies = {Path(dep).stem for dep in code_of(stage) if lies_in(dep, ["ipu_model/heads"])}
        assert dependencies == {heads[name.partition("@")[2]]}, name


def test_a_stage_reads_its_own_sections_of_the_parameters_a_gate_all_that_it_judges_by():
    commands = {module_of(stage) for stage in whole_plan().values()}
    whole = {name for name in commands if "load_params" in module_file(name).read_text(encoding="utf-8")}
    assert whole == {"tasks.downstream.gate.gate"}


@pytest.mark.parametrize("entry", entries(everything()), ids=lambda entry: entry.name)
def test_a_gate_reads_all_that_it_judges(entry, tmp_path):
    stage, subject = whole_plan()[f"gate@{entry.name}"], make_subject(entry, everything())
    for folder in (subject.model, artifacts.TOKENIZER):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    # of the curves it takes its advice, and no verdict
    read = {dep for dep in stage.deps if not dep.startswith(("tasks/", "ipu_model/", "inputs/", "plots/"))}
    names = subject.judged(entry.released, tmp_path)
    judged = {name for name in names if not name.startswith("released/")}
    judged |= {str(entry.released)} if entry.fetches_released else set()
    lies_in = {path: {str(folder) for folder in (Path(path), *Path(path).parents)} & read for path in judged}
    assert [path for path, deps in lies_in.items() if not deps] == [], "judged and not read: no new verdict"
    assert read == set().union(*lies_in.values()), "read and not judged"


def test_every_device_stage_has_its_program_built_before_and_depends_on_no_program():
    stages = whole_plan()
    for name, stage in stages.items():
        # The released model may have other sizes than this one, so that nothing is compiled for it ahead.
        if starts_device_jobs(stage) and not name.startswith(("compile", "predict_released")):
            what, _, item = name.rpartition("@")
            entry = item.partition("-cpu:")[0]
            job = item if what == "pretrain" else f"{entry}-{'finetune' if what == 'finetune' else 'predict'}"
            report = f"reports/compile-{job}.json"
            assert report in stage.deps, name
            assert report in stages[f"compile_pretrain@{job}" if what == "pretrain" else f"compile@{entry}"].outs
        assert not [dep for dep in stage.deps if dep.startswith("executables")], name


def test_public_functions_are_documented():
    """With a docstring, or by `help=`: what a command says; a docstring would be gone under PYTHONOPTIMIZE=2."""
    functions = [
        (path, node)
        for path in sources(*PACKAGES)
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name != "main"
    ]
    assert [
        f"{name_of(path)}: {node.name}"
        for path, node in functions
        if not ast.get_docstring(node) and "help=" not in " ".join(map(ast.unparse, node.decorator_list))
    ] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_the_documents_name_exists(name):
    """Paths, links with their headings, modules, make targets, and variables of the environment."""
    text = (ROOT / name).read_text(encoding="utf-8")
    elsewhere = (".git/", *(f"{folder}/" for folder in MADE_BY_RUNS))
    for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text):
        if not path.startswith(elsewhere):
            assert (ROOT / path).exists(), f"{name} names {path}"
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        linked = (ROOT / name).parent / target if target else ROOT / name
        assert linked.exists(), f"{name} links {target}"
        assert not heading or heading in headings(linked), f"{name} links {target}#{heading}"
    code = all_code()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for module in re.findall(r"python -m ((?:flows|tasks)(?:\.[a-z_]+)+|ipu_model(?:\.[a-z_]+)*)", text):
        stem = ROOT / module.replace(".", "/")
        assert stem.with_suffix(".py").exists() or (stem / "__main__.py").exists(), f"{name} runs {module}"
    for target in re.findall(r"^make ([a-z][\w-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{name} names make {target}"
    for variable in set(re.findall(r"\bPODIUM_[A-Z_]+", text)):
        assert variable in code, f"{name} names {variable}"


@functools.cache
def all_code():
    return "".join(path.read_text(encoding="utf-8") for path in sources(*PACKAGES, "tests"))


@functools.cache
def headings(path):
    lines = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def becomes_code(path, node):
    """Whether a node switches on code of a repository, or calls a loader that builds objects."""
    if isinstance(node, ast.keyword):
        return node.arg in ("trust_remote_code", "allow_pickle")
    if not isinstance(node, ast.Call):
        return False
    called, words = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
    if called == "torch.load":
        return (path.name, words.get("weights_only")) != ("weight_files.py", "True")
    if called == "yaml.load":
        return words.get("Loader") != "_PlainValues"
    return called in ("eval", "exec", "yaml.unsafe_load", "yaml.full_load")


def test_nothing_from_outside_can_become_code():
    """No switch that runs code of a repository, no loader that builds objects, no archive unpacked."""
    calls = [
        f"{name_of(path)}:{node.lineno}"
        for path in sources(*PACKAGES)
        for node in nodes_of(path)
        if isinstance(node, ast.keyword | ast.Call) and becomes_code(path, node)
    ]
    assert calls == []
    unpacking = {"zipfile", "tarfile", "shelve", "marshal", "dill", "joblib", "cloudpickle"}
    # weight_files lists what a file of torch holds, to refuse what is packed in it.
    assert {
        (name_of(path), top)
        for path in sources(*PACKAGES)
        for top in unpacking & {name.split(".")[0] for name in imported_modules(path)}
    } == {("ipu_model/models/weight_files.py", "zipfile")}
