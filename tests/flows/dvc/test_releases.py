"""The flow fetches what gates compare with before their stages; all workers get what one host chose."""

import shutil

import pytest

from flows.dvc import releases
from flows.runs import policy
from tasks.downstream.inference.fetched_releases import read_fetched
from tasks.stage.errors import ParamsError
from tests.places import ROOT
from tests.tasks.conftest import hub_over_http  # noqa: F401 (the fixture hub)
from tests.tasks.downstream.entries import values_with
from tests.tasks.release.hub_publishing import repository
from tests.tasks.release.released_checkout import FOLDER, release, state
from tests.tasks.trained_checkout import make_checkout

GATE = ["gate@squad"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout whose gate asks for what was published, with the stages of the project."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    root = make_checkout(tmp_path / "checkout")
    shutil.copy(ROOT / "dvc.yaml", root / "dvc.yaml")
    state(root)
    return root


def fetched(checkout):
    return [model.tag for model in read_fetched(checkout / FOLDER)]


def test_only_a_run_that_compares_fetches_and_of_a_folder_workers_nothing_as_each_has_its_own(checkout):
    lines = []
    releases.fetch_releases(["tokenizer", "finetune@squad"], checkout, lines.append)
    assert (lines, (checkout / FOLDER).exists()) == ([], False)
    tag = release(checkout)
    chosen = releases.select_releases(GATE, checkout)
    assert chosen == {"squad": []}
    releases.fetch_releases(GATE, checkout, lines.append)
    assert (lines, fetched(checkout)) == ([f"squad: {tag} (fetched)"], [tag])
    assert releases.fetch_releases(GATE, checkout, print, chosen)
    assert [path.name for path in (checkout / FOLDER).parent.iterdir()] == []


def test_a_model_that_is_up_to_date_is_not_compared_with_its_own_release(checkout):
    def fetch(*unchanged):
        return releases.fetch_releases(GATE, checkout, print, unchanged=unchanged)

    assert fetch("finetune@squad"), "first release: an empty record"
    release(checkout)
    assert not fetch("finetune@squad")
    assert fetch("examples@squad"), "another model will be trained"
    assert not fetch("examples@squad")


def test_workers_fetch_what_one_host_chose_whatever_is_released_meanwhile(checkout, hub):
    state(checkout, target="hub")
    assert releases.select_releases(GATE, checkout) == {"squad": []}
    first = release(checkout)
    chosen = releases.select_releases(GATE, checkout)
    assert chosen == {"squad": [f"{first}@{repository(hub).tags[first]}"]}
    policy.require_releases(chosen, values_with())
    release(checkout, seed=1)
    for choice, tags in ((chosen, [first]), ({"squad": []}, [])):
        releases.fetch_releases(GATE, checkout, print, choice)
        assert fetched(checkout) == tags


def test_a_hub_that_does_not_answer_ends_the_run_with_its_address(checkout, hub, monkeypatch):
    state(checkout, target="hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(releases.ReleaseFailed, match=r"http://127\.0\.0\.1:9 does not answer"):
        releases.fetch_releases(GATE, checkout, print)


@pytest.mark.parametrize("sent", [{"squad": ["--list"]}, {"squad": "release"}, {"squad": [3]}, {"other": []}])
def test_a_worker_takes_no_other_words_for_releases(sent):
    with pytest.raises(ParamsError):
        policy.require_releases(sent, values_with())
