"""What the tests of publishing to a Hub share: a small release, and what a Hub has of it."""

from tasks.release.hub.calls import Patience
from tasks.release.hub.transaction import HubRelease, release_on_hub
from tasks.release.release import Release, release_file
from tests.hub_server import Commit, HubServer, Repository

TOKEN = "hf_PlantedTokenThatMustNotLeak0123456789"
NAME = "user/demo"


def small_release(text: str = "one") -> Release:
    """A card, a small file and a large one; enough for every request."""
    card = "---\nlicense: apache-2.0\n---\n\n# demo\n"
    files = {"README.md": card, "evaluation/metrics.json": text, "model.safetensors": f"weights {text}"}
    return Release({name: release_file(content.encode()) for name, content in files.items()})


def publish_small(text: str = "one", waits: list[float] | None = None, *, review: bool = False) -> HubRelease:
    patience = Patience(sleep=list[float]().append if waits is None else waits.append)
    return release_on_hub(small_release(text), NAME, private=True, review=review, patience=patience)


def repository(hub: HubServer) -> Repository:
    return hub.store.repositories["model", NAME]


def commits(hub: HubServer) -> list[Commit]:
    """Commits on main after the Hub's own first one."""
    return repository(hub).history()[1:] if ("model", NAME) in hub.store.repositories else []


def content(hub: HubServer, commit: Commit) -> dict[str, bytes]:
    return {path: hub.store.objects[blob.sha256] for path, blob in commit.tree.items() if path != ".gitattributes"}


def open_requests(hub: HubServer) -> list[int]:
    return sorted(number for number, pull in repository(hub).pulls.items() if pull["status"] == "open")


def merge(hub: HubServer, number: int) -> None:
    repository(hub).branches["main"] = repository(hub).branches[f"refs/pr/{number}"]
    repository(hub).pulls[number]["status"] = "merged"
