"""What was released last is fetched whole or not at all; publish replaces what the gate compared with, and no other."""

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ipu_model.core.files import exclusive_lock, read_json, sha256_of, write_json
from tasks.downstream.inference.fetched_releases import read_fetched, verify_release
from tasks.downstream.inference.predict_released import predict_released
from tasks.params.entries import find_entry
from tasks.params.schema import load_params
from tasks.release import fetch
from tasks.release.fetch import FetchResult, parse_tagged
from tasks.release.hub import transaction
from tasks.release.names import FolderReleases
from tasks.stage import artifacts
from tasks.stage.errors import GateRejected, InputError, ParamsError, PublishError
from tasks.stage.process import STARTED_BY_A_WORKER
from tests.hub_server import HubServer
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.downstream.texts.glue_checkout import run_stage
from tests.tasks.release.hub_publishing import NAME, commits, merge, open_requests, repository
from tests.tasks.release.released_checkout import FOLDER, fetch_here, publish_here, release, replace_model, state
from tests.tasks.trained_checkout import write_gate

PUBLISHED = Path("published/podium-demo")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub-cache"))


@pytest.fixture
def checkout(checkout: Path) -> Path:
    """A checkout whose gate asks for what was published."""
    state(checkout)
    return checkout


def tags(fetched: FetchResult) -> list[str]:
    return [release.tag for release in fetched.releases]


def files_below(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_fetched_and_what_lay_there_before_stays_behind_it(checkout: Path) -> None:
    first = release(checkout)
    fetched = fetch_here(checkout)
    assert (tags(fetched), fetched.changed) == ([first], True)
    apart = ("README.md", "evaluation/metrics.json", "stage_runs.json")
    published = files_below(checkout / PUBLISHED)
    assert fetched.releases[0].files == {name: sha256 for name, sha256 in published.items() if name not in apart}
    second = release(checkout, seed=1)
    fetched = fetch_here(checkout)
    assert tags(fetched) == [second, first]
    assert read_fetched(checkout / FOLDER) == fetched.releases
    for fetched_release in fetched.releases:
        verify_release(fetched_release, checkout / FOLDER)
    assert not fetch_here(checkout).changed
    third = release(checkout, seed=2)
    assert tags(fetch_here(checkout)) == [third, second], "two are kept"
    assert {path.name for path in (checkout / FOLDER).iterdir()} == {third, second, "releases.json"}
    state(checkout, license="mit")
    again = release(checkout)
    assert tags(fetch_here(checkout)) == [again, second], "another card of the same weights replaces the first"


def test_after_its_own_publication_a_model_is_compared_with_the_same_release(checkout: Path) -> None:
    first = release(checkout, seed=0)
    assert tags(fetch_here(checkout)) == [first], "another training replaces it"
    second = release(checkout, seed=1)
    fetched = fetch_here(checkout, trained=True)
    assert (tags(fetched), fetched.changed) == ([first], False)
    FolderReleases(checkout / PUBLISHED).promote(first)
    assert not fetch_here(checkout, trained=True).changed, "it replaced that one"
    third = release(checkout, seed=2)
    replace_model(checkout, seed=1)
    FolderReleases(checkout / PUBLISHED).promote(third)
    fetched = fetch_here(checkout, trained=True)
    assert (tags(fetched), fetched.changed) == ([third, second], True), "published by someone else"


def test_a_release_of_another_task_ends_the_command(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(checkout)
    values = read_json(checkout / PUBLISHED / "provenance.json")
    values["parameters"]["downstream"]["squad"]["kind"] = "ner"
    write_json(checkout / PUBLISHED / "provenance.json", values)
    shutil.rmtree(checkout / "published/podium-demo.releases")
    monkeypatch.chdir(checkout)
    with pytest.raises(InputError, match="kind ner, .*kind squad"):
        run_stage(fetch, "squad")


def test_what_changes_while_it_is_fetched_is_refused(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(checkout)
    fetch_here(checkout)
    before = files_below(checkout / FOLDER)
    release(checkout, seed=1)

    def link(source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"{}" if target.name == "config.json" else source.read_bytes())

    monkeypatch.setattr("tasks.release.fetch.link_or_copy", link)
    with pytest.raises(InputError, match="changed while it was fetched"):
        fetch_here(checkout)
    assert files_below(checkout / FOLDER) == before
    assert [path.name for path in (checkout / FOLDER).parent.iterdir()] == ["squad"], "nothing half-written is left"
    (checkout / PUBLISHED / "provenance.json").unlink()
    with pytest.raises(InputError, match=r"squad\.publish\.folder=published/podium-demo"):
        fetch_here(checkout)
    assert files_below(checkout / FOLDER) == before


@pytest.mark.parametrize("text", ['{"releases": [{}]}', "no JSON", '{"releases": [{"tag": "../x"}]}'])
def test_a_damaged_record_is_an_error_for_who_reads_it_and_made_anew_by_who_fetches(checkout: Path, text: str) -> None:
    release(checkout)
    [fetched] = fetch_here(checkout).releases
    record = checkout / FOLDER / "releases.json"
    whole = record.read_text()
    record.write_text(text)
    with pytest.raises(InputError, match="is damaged"):
        read_fetched(checkout / FOLDER)
    assert fetch_here(checkout).changed
    assert record.read_text() == whole
    path = checkout / FOLDER / fetched.tag / "tokenizer.json"
    path.unlink()  # it may share its bytes with what was published
    path.write_text("{}")
    with pytest.raises(InputError, match="tokenizer.json"):
        verify_release(fetched, checkout / FOLDER)


def test_newest_releases_of_a_repository_have_their_commits(
    checkout: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state(checkout, target="hub")
    assert fetch_here(checkout).releases == []
    first, second = release(checkout, seed=0), release(checkout, seed=1)
    hub.store.add_files(repository(hub), {"notes.md": b"by hand"})
    fetched = fetch_here(checkout).releases
    assert [(release.tag, release.repository, release.commit) for release in fetched] == [
        (tag, NAME, repository(hub).tags[tag]) for tag in (second, first)
    ]
    for fetched_release in fetched:
        verify_release(fetched_release, checkout / FOLDER)
    hub.requests.clear()
    monkeypatch.setenv(STARTED_BY_A_WORKER, "17")  # which may publish there, and so reads what is private
    assert not fetch_here(checkout).changed
    assert not hub.sent("GET", "/resolve/"), "the same revisions: nothing is downloaded"
    monkeypatch.delenv(STARTED_BY_A_WORKER)
    assert release(checkout, seed=0) == first, "the same content keeps its tag, which stays at the first commit"
    assert tags(fetch_here(checkout)) == [first, second]


@pytest.mark.parametrize("text", ["", "release-0123456789ab", "release-0123456789ab@main", "../x@" + 40 * "0"])
def test_what_is_no_release_is_no_choice(text: str) -> None:
    with pytest.raises(ParamsError, match="TAG@COMMIT is required"):
        parse_tagged(text)


def test_a_fetch_that_breaks_off_leaves_what_was_there(checkout: Path, hub: HubServer) -> None:
    state(checkout, target="hub")
    first = release(checkout)
    fetch_here(checkout)
    before, second = files_below(checkout / FOLDER), release(checkout, seed=1)
    hub.fault("HEAD", "/resolve/.*/model.safetensors", times=99, status=403)
    with pytest.raises(InputError, match=r"downstream\.squad\.publish\.repository=user/demo .* cannot be read"):
        fetch_here(checkout)
    assert files_below(checkout / FOLDER) == before
    hub.faults.clear()
    hub.fault("GET", "/refs$", status=403, headers={"X-Error-Code": "GatedRepo"})
    with pytest.raises(InputError, match="it is gated"):
        fetch_here(checkout)
    assert tags(fetch_here(checkout)) == [second, first]


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> list[Path]:
    """Two runs with weights of their own that publish to one folder, and that no one judged yet."""
    roots = [Path(shutil.copytree(trained, tmp_path / f"run{seed}")) for seed in (0, 1)]
    for seed, root in enumerate(roots):
        replace_model(root, seed)
        state(root, {"publish": {"folder": f"../out/{PUBLISHED}"}})
    return roots


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder that both publish to."""
    return tmp_path / "out" / PUBLISHED


@pytest.fixture
def on_hub(runs: list[Path], request: pytest.FixtureRequest) -> list[Path]:
    """The same for a repository, both judged; the first waits for review where a test asks for it."""
    request.getfixturevalue("hub")
    for root in runs:
        state(root, target="hub", review=root == runs[0] and getattr(request, "param", "") == "review")
        judge(root)
    return runs


def judge(root: Path, **how: Any) -> None:
    """Fetch what is out, score it, and let the gate compare with it."""
    params = load_params(root / artifacts.PARAMS)
    fetch_here(root, **how)
    predict_released(find_entry(params, "squad"), params.device, root)
    write_gate(root)
    assert read_json(root / "metrics/squad-gate.json")["accepted"]


def answer(root: Path, **texts: str) -> None:
    write_json(root / artifacts.predictions_file("squad"), texts)
    write_gate(root)


def test_a_release_that_the_gate_did_not_compare_with_is_not_replaced(runs: list[Path], out: Path) -> None:
    first, second = runs
    judge(first)
    judge(second)
    tag = publish_here(second)["tag"]
    with pytest.raises(PublishError, match=f"{tag} in .*{PUBLISHED} was released meanwhile.* with no release"):
        publish_here(first)
    assert sha256_of(out / "model.safetensors") == sha256_of(second / "models/squad/model.safetensors")
    assert not (first / "reports/publish-squad.json").exists()
    assert {path.name for path in out.parent.iterdir()} == {"podium-demo", "podium-demo.releases"}
    judge(first)
    assert publish_here(first)["unchanged"] is False, "run again, it may"
    assert sha256_of(out / "model.safetensors") == sha256_of(first / "models/squad/model.safetensors")
    with pytest.raises(PublishError, match="was released meanwhile"):
        publish_here(second)


def test_what_the_gate_did_not_see_is_compared_where_it_is_published(runs: list[Path], out: Path) -> None:
    """As by a worker, or by plain `dvc repro`: nothing was fetched."""
    first, second = runs
    for root in runs:
        change_parameters(root, {"downstream": {"squad": {"gate": {"above_baseline": False, "min_exact_match": None}}}})
        judge(root, these=[])
        assert "could not see its target" in read_json(root / "metrics/squad-gate.json")["compared"]
    tag = publish_here(first)["tag"]
    assert "as its target has no other model." in (out / "README.md").read_text()
    assert publish_here(first)["unchanged"] is True
    answer(second, q1="a river", q2="hills")
    with pytest.raises(GateRejected, match="(?s)the gate did not see .*F1 dropped"):
        publish_here(second)
    examples = second / artifacts.examples_file("squad", "dev")
    rows = pq.read_table(examples)
    pq.write_table(rows.set_column(0, "id", pa.array(["q1", "q3"])), examples)
    answer(second, q1="northern hills", q3="a lake")
    with pytest.raises(PublishError, match=f"^{tag} in .* scores of these questions"):
        publish_here(second)
    pq.write_table(rows, examples)
    answer(second, q1="northern hills", q2="a lake")
    assert publish_here(second)["unchanged"] is False
    assert f"It was compared with {tag}, by the scores of that release." in (out / "README.md").read_text()


@pytest.mark.parametrize(("released", "compared"), [("none", "is none"), ("inputs/released", "has no scores")])
def test_a_gate_without_comparison_says_so(runs: list[Path], out: Path, released: str, compared: str) -> None:
    for root in runs:
        change_parameters(root, {"downstream": {"squad": {"gate": {"released": released}}}})
        write_gate(root)
        assert read_json(root / "metrics/squad-gate.json")["compared"].endswith(compared)
        assert publish_here(root)["unchanged"] is False
    assert f"gate.released {compared}." in (out / "README.md").read_text()


def test_of_two_that_publish_at_the_same_moment_the_second_is_refused(runs: list[Path], out: Path) -> None:
    for root in runs:
        judge(root)
    context = multiprocessing.get_context("fork")
    answers: Any = context.SimpleQueue()

    def publish(root: Path) -> None:
        try:
            answers.put(publish_here(root)["tag"])
        except PublishError as error:
            answers.put(str(error))

    with exclusive_lock(out.with_name(".podium-demo.lock")):  # both have judged, and wait for the folder
        processes = [context.Process(target=publish, args=(root,)) for root in runs]
        for process in processes:
            process.start()
        assert answers.empty()
    for process in processes:
        process.join()
    tag, refusal = sorted((answers.get() for _ in runs), key=len)
    assert tag.startswith("release-")
    assert refusal.startswith(f"{tag} in ")
    assert {path.name for path in out.parent.iterdir()} == {"podium-demo", "podium-demo.releases"}


@pytest.mark.parametrize("tagged", [True, False])
def test_a_release_that_lands_between_the_look_and_the_commit_is_not_replaced(
    on_hub: list[Path], hub: HubServer, monkeypatch: pytest.MonkeyPatch, tagged: bool
) -> None:
    first, second = on_hub
    real = transaction.send

    def send(*words: Any, **options: Any) -> Any:
        monkeypatch.setattr(transaction, "send", real)
        publish_here(second)
        if not tagged:
            repository(hub).tags.clear()
        return real(*words, **options)

    monkeypatch.setattr(transaction, "send", send)
    with pytest.raises(PublishError, match="was released meanwhile" if tagged else "which has no tag yet"):
        publish_here(first)
    assert len(commits(hub)) == 1


@pytest.mark.parametrize("on_hub", ["review"], indirect=True)
def test_a_review_or_a_merge_over_what_was_not_compared_with_is_no_release(on_hub: list[Path], hub: HubServer) -> None:
    first, second = on_hub
    assert publish_here(first)["pull_request"] == 1
    target = repository(hub)
    proposed = target.resolve("refs/pr/1")
    tag = publish_here(second)["tag"]
    with pytest.raises(PublishError, match=f"^{tag} of {NAME} was released meanwhile"):
        publish_here(first)
    assert open_requests(hub) == [1]
    merged = hub.store.commit(target, "main", dict(proposed.tree), f"{proposed.title} (#1)")
    target.branches["refs/pr/1"] = merged.oid
    merge(hub, 1)
    with pytest.raises(PublishError, match=f"^{tag} of {NAME} was released meanwhile"):
        publish_here(first)
    assert list(target.tags) == [tag]
