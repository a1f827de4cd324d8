"""Checks of inputs before a run: input files and the Hub.

Files must exist, have a known format and the requested columns. On the Hub the token must allow publishing, and the
models and data sets to read must exist.

    python -m flows.checks.input_checks < REQUEST

REQUEST is JSON: `values`, the resolved parameters; `compared`, the entries whose gates compare with the model that
publishing replaces, in a folder or on the Hub; and either `read`, the dependencies of the stages, or for the Hub
`publish`, the repositories to publish to; `review`; `sources`, a list of objects with `kind` (dataset, model, or
teacher of the entry `section`), `section`, `name` and `revision`; and `origin`, whether README.md of a base model on
the Hub decides if a release may go there. The program prints a line of JSON for each result (flows/checks reads them).
It reads the first records of the files with the readers of the stages, and so reports their messages. From the Hub it
downloads a teacher, README.md, config.json and tokenizer of the base model, and config.json and provenance of a
release, and it changes nothing there.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.checks.probes import CheckResult, answer_request, ok, problem, warning
from ipu_model.core.units import format_count
from tasks.downstream.kind import kind_of
from tasks.downstream.reading import CheckedFiles, assume_files
from tasks.params.entries import BASE, Entry, entries
from tasks.params.schema import Params, parameter_values, validate_params
from tasks.params.strict_yaml import value_at
from tasks.plan.main import run_main
from tasks.plan.named_files import INPUTS_OF_ENTRIES, check_input_paths, find_parameters
from tasks.records.duplicate_report import FEW
from tasks.records.interpretation import Interpretation, describe_inputs
from tasks.records.splits import SEEN
from tasks.stage.errors import InputError, ParamsError, PodiumError

LIMIT_S = 1.5
"""Time limit for the first records of many files; the stages check the rest."""
HEAD = 20
"""Number of records of each file to check."""
OF_FILES = ("file", "files", "folder")
"""Values of `source` of a section that reads its path."""
INPUT = "input"
"""Name of the results that the first lines of a run repeat: how an input is read, and what it can show."""
DISAGREEMENT = 1 / 8
"""Share of examples that two similar models are assumed to answer differently, for the power of a development set."""
PUBLISH_LATER = "Or run with --no-publish, and publish later with podium publish"


@dataclass(frozen=True)
class InputCheck:
    """Check of some of the inputs in the parameters."""

    name: str
    keys: tuple[str, ...]
    """Parameters with the paths of the inputs."""
    check: Callable[[Params], str]
    """Returns a summary; raises PodiumError or OSError."""
    warn: Callable[[Params], str] = lambda params: ""
    """Returns a warning; empty: none."""
    tell: Callable[[], Iterable[str]] = tuple
    """Returns what the first lines of a run say about the input after a passed check."""


class EntryExamples:
    """Examples of an entry. The checks of a process share them, so that its files are read once."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    @functools.cached_property
    def checked(self) -> CheckedFiles:
        """Read the files, and return what they show; raise PodiumError or OSError."""
        return kind_of(self.entry).reader(self.entry).check_files()

    def read(self) -> CheckedFiles:
        """Return what the files show, if there are any; the check of the files reports invalid ones."""
        if _reads_files(self.entry):
            with contextlib.suppress(PodiumError, OSError):
                return self.checked
        return assume_files(self.entry)


def make_corpus_check() -> InputCheck:
    """Return the check of the corpus: known formats, and valid first documents in as many files as time allows."""
    inputs: dict[str, Interpretation] = {}

    def check(params: Params) -> str:
        from tasks.corpus.documents import name_files, read_piece
        from tasks.corpus.pieces import choose_columns
        from tasks.corpus.quality import make_rules
        from tasks.records.layouts import MORE_DOCUMENTS

        section = params.corpus
        make_rules(section.quality)
        columns, reading = choose_columns(section), Interpretation()
        until = time.monotonic() + LIMIT_S
        files, counts = list(name_files(Path(section.path), section.layout, reading, columns)), list[int]()
        for file in files:
            counts.append(sum(1 for _ in itertools.islice(read_piece(file, columns, reading, section.separator), HEAD)))
            if time.monotonic() > until:
                break
        least, whole = params.validate_.min_documents, len(counts) == len(files) and max(counts) < HEAD
        if whole and sum(counts) < least:
            what = format_count(sum(counts), "documents")
            raise InputError(f"{section.path} has {what}; at least {least:,} are required: {MORE_DOCUMENTS}")
        inputs[f"{Path(section.path).name} (first records)"] = reading
        return f"{format_count(len(files), 'files')} in {section.path}; checked the first records of {reading.files}"

    return InputCheck("corpus", ("corpus.path",), check, tell=lambda: describe_inputs(inputs))


def check_vocabulary(params: Params) -> str:
    """Check all of vocab.txt, or of the tokenizer of a model folder."""
    from tasks.vocabulary.fast_tokenizer import BLANK_NEEDED
    from tasks.vocabulary.hub_tokenizer import load_local_vocabulary

    section = params.tokenizer
    vocabulary = load_local_vocabulary(Path(section.path), section.lowercase)
    vocabulary = vocabulary.with_prefix_space(section.add_prefix_space)
    readers = [entry.name for entry in entries(params) if entry.params.reads_words]
    if readers and vocabulary.blank_before_words:
        raise ParamsError(f"{readers[0]} {BLANK_NEEDED}")
    return f"{len(vocabulary.tokens):,} entries in {section.path}"


def check_prepared_rows(params: Params) -> str:
    """Check the first sequences of each phase."""
    from tasks.pretraining.rows.prepared_files import read_prepared_batches

    for phase in params.pretrain.list_phases():
        section = params.pretrain_rows.get_phase(phase)
        next(read_prepared_batches(section, "files", f"pretrain_rows.{phase}", Interpretation()), None)
    return " and ".join(params.pretrain_rows.get_phase(phase).path for phase in params.pretrain.list_phases())


def make_entry_check(examples: EntryExamples) -> InputCheck:
    """Return the check of an entry's files by its kind."""
    entry = examples.entry

    def check_entry(params: Params) -> str:
        from tasks.models.model_folders import packs_rows

        if not packs_rows(params.model.family):
            need = f"needs a family that Podium trains itself, found {params.model.family} (docs/models.md)"
            if entry.params.needs_own_family:
                raise ParamsError(f"{entry.name}: kind {entry.kind} {need}. Start from another model")
            if entry.params.distill.layers is not None:
                raise ParamsError(f"{entry.key('distill', 'layers')} {need}. Set it to null; a teacher is possible")
        checked = examples.checked
        if checked.seen is not None and checked.seen.share > entry.params.data.max_common_share:
            limit = entry.key("data", "max_common_share")
            raise InputError(f"{checked.seen.describe(entry.record)}: {SEEN.format(limit)}")
        if checked.has_pairs and (folder := _base_folder(entry, params)) is not None:
            _require_token_types(entry.name, folder)
        return checked.summary

    def warn(params: Params) -> str:
        folder = _base_folder(entry, params)
        return "" if folder is None else _describe_head(examples, folder)

    paths = find_parameters({"downstream": {entry.name: entry.params.model_dump()}}, INPUTS_OF_ENTRIES)
    keys = tuple(key for key in paths if key.startswith(f"{entry.key('data')}."))
    return InputCheck(entry.name, keys, check_entry, warn, lambda: _describe_inputs(entry, examples.checked))


def _describe_inputs(entry: Entry, checked: CheckedFiles) -> Iterator[str]:
    """Yield how the files of an entry are read, and which differences its development examples can show."""
    data = entry.params.data
    names = {split: Path(getattr(data, f"{split}_path", None) or split).name for split in checked.inputs}
    yield from describe_inputs({names[split]: interpretation for split, interpretation in checked.inputs.items()})
    if checked.seen and checked.seen.seen > FEW * checked.seen.total:
        yield f"{entry.name}: {checked.seen.describe(entry.record)}"
    if text := describe_dev_set(entry, checked):
        yield f"{entry.name}: {text}"


def make_teacher_check(examples: EntryExamples) -> InputCheck:
    """Return the check of an entry's teacher: its task, classes and tokenizer."""
    entry = examples.entry

    def check(params: Params) -> str:
        from tasks.downstream.inference.teacher import find_teacher, require_same_labels, require_same_tokenizer
        from tasks.records.hub_inputs import download_files
        from tasks.vocabulary.hub_tokenizer import FILES, load_local_vocabulary

        teacher, tokenizer = find_teacher(entry), params.tokenizer
        folder = Path(tokenizer.path) if tokenizer.source == "file" else None
        if tokenizer.source == "hub":
            choose = set(FILES).intersection
            _, _, files = download_files(str(tokenizer.repository), tokenizer.revision, choose, "tokenizer")
            folder = next((path.parent for path in files.values()), None)
        if folder is not None:
            vocabulary = load_local_vocabulary(folder, tokenizer.lowercase)
            require_same_tokenizer(teacher, vocabulary.with_prefix_space(tokenizer.add_prefix_space))
        checked = examples.read()
        require_same_labels(teacher, checked.labels, checked.has_all_labels)
        return f"{teacher.key} is for the same task, with the same tokenizer"

    paths = find_parameters({"downstream": {entry.name: entry.params.model_dump()}}, INPUTS_OF_ENTRIES)
    return InputCheck(f"teacher of {entry.name}", tuple(key for key in paths if ".gate." not in key), check)


def make_released_check(examples: EntryExamples) -> InputCheck:
    """Return the check of the model that publishing an entry replaces: its task and classes, not its weights."""
    entry = examples.entry

    def check(params: Params) -> str:
        from tasks.downstream.inference.predict_released import require_comparable
        from tasks.release.fetch import read_replaced

        if (released := read_replaced(params, entry)) is None:
            return f"{entry.name}: first release, there is no model to compare with"
        checked = examples.read()
        require_comparable(entry, released, checked.labels, checked.has_all_labels)
        return f"{entry.name}: the released model is for the same task"

    return InputCheck("release", (), check)


def describe_dev_sets(params: Params) -> Iterator[str]:
    """Yield a line for each entry whose development examples are known from small files."""
    for entry in filter(_reads_files, entries(params)):
        if text := describe_dev_set(entry, EntryExamples(entry).read()):
            yield f"{entry.name}: {text}"


def describe_dev_set(entry: Entry, checked: CheckedFiles) -> str:
    """Return which differences the development examples can show, and the best constant answer if there is one.

    Answers are assumed to follow the frequency of the classes. The result is empty if the number is not known.
    """
    from tasks.downstream.scoring.significance import describe_power, expect_half_width  # imports numpy

    if not checked.dev_count:
        return ""
    level, constant = entry.params.gate.confidence, ""
    points = expect_half_width(checked.dev_count, DISAGREEMENT, level)
    if checked.constant is not None:
        name, share = checked.constant
        gain = expect_half_width(checked.dev_count, 1 - share, level)
        constant = f'; one to always answering "{name}", which is right for {share:.1%}, {gain:.1f} points'
    sample = f"{checked.dev_count:,} development {entry.record}s"
    return f"{describe_power(sample, 'a gap between two similar models', points)[:-1]}{constant}"


def _describe_head(examples: EntryExamples, folder: Path) -> str:
    """Return what happens to a model's head for the classes in the files; empty: nothing to report."""
    from tasks.models.model_folders import describe_head

    checked, suffix = examples.read(), kind_of(examples.entry).suffix
    return describe_head(folder, suffix, checked.labels, checked.has_all_labels) if checked.labels else ""


def _reads_files(entry: Entry) -> bool:
    return getattr(entry.params.data, "source", "files") == "files"


def _base_folder(entry: Entry, params: Params) -> Path | None:
    """Return the local folder of the base model that the entry is fine-tuned from; None if there is none."""
    from tasks.models.model_folders import find_cached_folder

    base = params.base_model
    if entry.start != BASE or base.source == "none":
        return None
    return Path(base.path) if base.source == "folder" else find_cached_folder(str(base.repository), base.revision)


def _require_token_types(what: str, folder: Path) -> None:
    """Require a model with token types for text pairs, if its tokenizer gives them types."""
    from tasks.models.model_folders import read_architecture
    from tasks.vocabulary.encoding import load_tokenizer, read_tokenizer_info

    try:
        types = read_architecture(folder, str(folder)).type_vocab_size
    except InputError:
        return  # reported by `check_base_model`
    typed = types == 1  # a model without token types ignores them
    if typed:
        with contextlib.suppress(InputError):  # a folder without a tokenizer, or one that is reported elsewhere
            typed = read_tokenizer_info(load_tokenizer(folder)).second_type is not None
    if typed:
        raise InputError(
            f"{folder} has one token type (type_vocab_size in config.json), but {what} reads text pairs, which require "
            "two. Start from a model with two token types"
        )


def check_base_model(params: Params) -> str:
    """Check config.json against the section `model` and an existing vocabulary; no weights are read."""
    from tasks.pretraining.base_model import check_model_folder
    from tasks.vocabulary.hub_tokenizer import load_local_vocabulary

    tokens = None
    if params.tokenizer.source == "file":
        with contextlib.suppress(PodiumError, OSError):  # reported by the check of the vocabulary
            tokens = load_local_vocabulary(Path(params.tokenizer.path), params.tokenizer.lowercase).tokens
    check_model_folder(params.base_model, params.model, tokens)
    if params.pretrain.list_phases() and params.pretrain_rows.source == "corpus" and params.pretrain_rows.next_sentence:
        _require_token_types("pre-training", Path(params.base_model.path))
    for entry in entries(params):
        if entry.start == BASE and not _reads_files(entry) and entry.params.reads_pairs:
            _require_token_types(entry.name, Path(params.base_model.path))
    return f"{params.base_model.path} has the architecture of section model"


def check_ipu_config(params: Params) -> str:
    """Check ipu_config.json with the overrides of section `ipu`."""
    from ipu_model.core.errors import ConfigError
    from tasks.jobs.device_job import read_ipu_config
    from tasks.jobs.training import ipu_config as laid_over

    overrides = {phase: params.ipu.get_phase(phase) for phase in params.pretrain.list_phases()}
    for entry in entries(params):
        overrides |= {f"{entry.name}-{job}": getattr(entry.params.ipu, job) for job in ("finetune", "predict")}
    for job, keys in overrides.items():
        try:
            read_ipu_config(laid_over(params.ipu, keys, params.device) or {}, f"the IPU config of {job}")
        except ConfigError as error:
            raise ParamsError(str(error)) from None
    return f"{params.ipu.config} with its overrides, for {', '.join(overrides)}"


CHECKS = (
    InputCheck("vocabulary", ("tokenizer.path",), check_vocabulary),
    InputCheck("base model", ("base_model.path",), check_base_model),
    InputCheck("IPU config", ("ipu.config",), check_ipu_config),
)


def select_checks(params: Params, read: Collection[str], compared: Collection[str] = ()) -> list[InputCheck]:
    """Return the checks for the inputs in the parameters.

    Args:
        read: the dependencies of the stages that will run; other inputs are not checked.
        compared: entries whose gates compare with the model that publishing replaces.
    """
    values = parameter_values(params)

    def is_read(key: str) -> bool:
        """Return whether a stage reads the path; another section may state the same path without reading it."""
        words = key.split(".")
        sources = [value_at(values, ".".join([*words[:end], "source"])) for end in range(1, len(words))]
        return value_at(values, key) in read and all(source in (*OF_FILES, None) for source in sources)

    examples = [EntryExamples(entry) for entry in entries(params)]
    teachers = [make_teacher_check(item) for item in examples if item.entry.params.distill.teacher]
    paths = tuple(f"pretrain_rows.{phase}.path" for phase in params.pretrain.list_phases())
    prepared = InputCheck("prepared rows", paths, check_prepared_rows)
    # Slowest checks last, because only results within the time limit count.
    inputs = (*map(make_entry_check, examples), *teachers, *CHECKS, prepared, make_corpus_check())
    releases = [make_released_check(item) for item in examples if item.entry.name in compared]
    return [*(check for check in inputs if any(map(is_read, check.keys))), *releases]


def run_check(check: InputCheck, params: Params) -> Iterator[CheckResult]:
    """Yield the results of one check."""
    result = _call(check.name, functools.partial(check.check, params))
    yield result
    if result.level == "ok":
        note = _call(check.name, functools.partial(check.warn, params))
        yield from (ok(INPUT, text) for text in check.tell())
        if note.text:
            yield dataclasses.replace(note, level="warning" if note.level == "ok" else note.level)


def _call(name: str, check: Callable[[], str]) -> CheckResult:
    """Return the result of a check, which returns a summary or raises."""
    try:
        return ok(name, check())
    except PodiumError as error:
        return problem(name, str(error), of_parameters=isinstance(error, ParamsError))
    except OSError as error:
        file = error.filename or "a file"
        reason = f"{file} cannot be read ({error.strerror or error})"
        return problem(name, f"{reason}. Make it readable for this user, or use another")


def check_files(request: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Yield results for the files and folders in the parameters; `request` is REQUEST."""
    params = validate_params(request["values"])
    unreadable = check_input_paths(request["values"], Path())  # reported by the caller
    for check in select_checks(params, request["read"], request["compared"]):
        if not any(text.startswith(f"{key}=") for text in unreadable for key in check.keys):
            yield from run_check(check, params)


def check_hub(request: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Yield results for the Hub; `request` is REQUEST."""
    if request["publish"]:
        from tasks.release.hub.calls import Patience
        from tasks.release.hub.transaction import check_access

        # One attempt, because the user is waiting.
        patience = Patience(attempts=1, connect_timeout_s=5.0, read_timeout_s=8.0)
        result = _call("hub", lambda: check_access(request["publish"], review=request["review"], patience=patience))
        yield result if result.level == "ok" else dataclasses.replace(result, text=f"{result.text}. {PUBLISH_LATER}")
    params = validate_params(request["values"])
    examples = {entry.name: EntryExamples(entry) for entry in entries(params)}
    checks = [make_released_check(examples[name]) for name in request["compared"]]
    checks += [
        make_teacher_check(examples[source["section"]]) for source in request["sources"] if source["kind"] == "teacher"
    ]
    for check in checks:
        yield _call(check.name, functools.partial(check.check, params))
    if request["origin"]:
        result = _call("hub", lambda: _check_origin(params))
        yield dataclasses.replace(result, of_parameters=result.level == "problem")
    for source in request["sources"]:
        if source["kind"] == "teacher":
            continue
        result = _call("hub input", functools.partial(_check_source, **source))
        yield result
        if source["section"] == "base_model" and result.level == "ok":
            yield from _check_hub_base_model(params, examples.values())


def _check_source(kind: str, section: str, name: str | None, revision: str | None) -> str:
    from tasks.records.hub_inputs import check_dataset, download_files

    if kind == "dataset":
        check_dataset(section, name, revision)
    elif name:
        download_files(name, revision, lambda present: [], section)
    return f"{kind} {name} ({section})"


def _download_base_files(params: Params, names: Collection[str]) -> list[Path]:
    """Download those of these files that the base model on the Hub has."""
    from tasks.records.hub_inputs import download_files

    base = params.base_model
    _, _, files = download_files(str(base.repository), base.revision, set(names).intersection, "base_model")
    return list(files.values())


def _check_hub_base_model(params: Params, examples: Iterable[EntryExamples]) -> Iterator[CheckResult]:
    """Yield results for entries that start from a base model on the Hub, from its config.json."""
    from tasks.models.model_folders import CONFIG

    if not (files := _download_base_files(params, (CONFIG,))):
        return
    folder = files[0].parent
    for entry_examples in examples:
        if entry_examples.entry.start != BASE:
            continue
        with contextlib.suppress(PodiumError, OSError):  # reported by the check of its files
            if note := _describe_head(entry_examples, folder):
                yield warning(entry_examples.entry.name, note)
        try:
            if entry_examples.read().has_pairs:
                _require_token_types(entry_examples.entry.name, folder)
        except InputError as error:
            yield problem(entry_examples.entry.name, str(error))


def _check_origin(params: Params) -> str:
    from tasks.models.model_card import FILES, read_origin
    from tasks.release.release import require_origin, resolve_origin

    try:
        files = _download_base_files(params, FILES)
    except InputError as error:
        return f"license and language are unknown yet: {error}"  # reported by `sources`, or a worker may read it
    require_origin(params, resolve_origin(params, read_origin(files[0].parent) if files else None))
    return f"license and language of {params.base_model.repository} or of section publish"


def main() -> None:
    what = "Check the inputs of a run, which a JSON object on standard input names."
    answer_request(what, lambda request: check_files(request) if "read" in request else check_hub(request))


if __name__ == "__main__":
    run_main(main)
