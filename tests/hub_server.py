"""A local server that speaks the Hub's protocol over real HTTP, as far as its client library asks for it."""

import base64
import hashlib
import json
import re
import socket
import threading
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

MOMENT = "2026-01-01T00:00:00.000Z"
LFS_SUFFIXES = (".safetensors", ".parquet", ".arrow", ".bin")
GITATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


class HubError(Exception):
    """An answer that is not success: its status, a message, and the Hub's error code header."""


def refuse(wrong, status, message, code=None):
    if wrong:
        raise HubError(status, message, code)


def git_blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class Blob:
    """One file of a commit; `oid` is git's hash of its bytes, or of the pointer that stands for a large file."""

    sha256: str
    size: int
    lfs: bool
    oid: str

    def about_lfs(self, hash_name):
        """What an answer says of a large file, which names its hash so; nothing of a small one."""
        return {"lfs": {hash_name: self.sha256, "size": self.size, "pointerSize": 130}} if self.lfs else {}


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    title: str
    tree: dict[str, Blob]


@dataclass
class Repository:
    kind: str
    name: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, dict[str, str]] = field(default_factory=dict)
    """Number -> title, status and author of a pull request; its content is the branch refs/pr/NUMBER."""

    def resolve(self, revision):
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        oid = self.branches.get(name) or self.tags.get(name) or name
        refuse(oid not in self.commits, 404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[oid]

    def history(self, branch="main"):
        """Commits of a branch or a pull request, or up to a commit, oldest first."""
        commits, oid = [], self.resolve(branch).oid
        while oid is not None:
            commits.append(self.commits[oid])
            oid = self.commits[oid].parent
        return commits[::-1]


class HubStore:
    """Repositories by (kind, name), and bytes by SHA-256. Use under `lock`."""

    def __init__(self):
        self.lock = threading.RLock()
        self.repositories = {}
        self.objects = {}

    def create(self, kind, name, *, private=False):
        repository = self.repositories[kind, name] = Repository(kind, name, private)
        self.commit(repository, "main", {".gitattributes": self.small(GITATTRIBUTES)}, "initial commit")
        return repository

    def commit(self, repository, branch, added, title, deleted=(), parent=None):
        """One commit on `branch`; `parent`, where given, must be its head (else 412)."""
        head = repository.branches.get(branch)
        moved = parent is not None and (head is None or not head.startswith(parent))
        refuse(moved, 412, "A commit has happened since. Please refresh and try again.")
        tree = dict(repository.commits[head].tree) if head else {}
        for path in deleted:
            refuse(path not in tree, 404, f'A file with this name doesn\'t exist: "{path}"', "EntryNotFound")
            del tree[path]
        tree |= added
        text = repr((head, title, len(repository.commits), sorted(tree.items())))
        commit = Commit(hashlib.sha1(text.encode()).hexdigest(), head, title, tree)
        repository.commits[commit.oid] = commit
        repository.branches[branch] = commit.oid
        return commit

    def add_files(self, repository, files):
        with self.lock:
            return self.commit(repository, "main", {p: self.blob(p, d) for p, d in files.items()}, "add files")

    def blob(self, path, data):
        return self.large(self.keep(data), len(data)) if path.endswith(LFS_SUFFIXES) else self.small(data)

    def small(self, data):
        return Blob(self.keep(data), len(data), False, git_blob(data))

    def large(self, sha256, size):
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
        return Blob(sha256, size, True, git_blob(pointer.encode()))

    def keep(self, data):
        digest = hashlib.sha256(data).hexdigest()
        self.objects[digest] = data
        return digest


Response = namedtuple("Response", "status body headers")


def json_response(values, status=200, headers=None):
    body = json.dumps(values).encode()
    return Response(status, body, {"Content-Type": "application/json; charset=utf-8", **(headers or {})})


NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
API = rf"/api/(?P<kind>model|dataset)s/{NAME}"
REVISION = r"(?P<revision>refs/[\w.-]+/[\w.-]+|[^/]+)"
GIT = rf"/(?P<kind>datasets/)?{NAME}"
ROUTES = []


def serves(method, pattern, right=None):
    """Register a route: `right` is read, write, user (any valid token) or None."""

    def register(handler):
        ROUTES.append((method, re.compile(pattern), right, handler))
        return handler

    return register


def route(hub, request):
    method = "GET" if request.command == "HEAD" else request.command
    for verb, pattern, right, handler in ROUTES:
        match = pattern.fullmatch(request.path)
        if verb != method or not match:
            continue
        pieces = match.groupdict()
        token = request.headers.get("Authorization")
        request.user = hub.users.get((token or "").removeprefix("Bearer "))
        refuse(token and not request.user, 401, "Invalid credentials in Authorization header")
        if right in ("read", "write"):
            kind = (pieces.pop("kind") or "models/").rstrip("/").removesuffix("s")
            pieces["repository"] = allowed(hub, request.user, kind, pieces.pop("name"), right)
        refuse(right == "user" and request.user is None, 401, "Invalid username or password.")
        return handler(hub, request, **pieces)
    raise HubError(400, "no such route", None)


def allowed(hub, user, kind, name, right):
    """The repository, if the user may `right` it. What may not be seen is answered as not there."""
    owner = user is not None and user["name"] == name.split("/")[0]
    repository = hub.store.repositories.get((kind, name))
    hidden = repository is None or (repository.private and not owner)
    refuse(hidden, 404 if user else 401, "Repository not found", "RepoNotFound")
    refuse(right == "write" and user is None, 401, "Invalid username or password.")
    may_write = owner and user["role"] == "write"
    refuse(right == "write" and not may_write, 403, "Forbidden: you must use a write token to upload to a repository.")
    return repository


FAULT = {"times": 1, "after": 0, "status": None, "headers": {}, "body": b'{"error": "injected fault"}'}
FAULT |= {"drop": None, "hook": lambda: None}


class HubServer:
    def __init__(self):
        self.store = HubStore()
        self.users = {}
        self.requests = []
        """(method, path, status) in order of arrival; status 0 = the connection was dropped."""
        self.tokens = []
        """(path, Authorization header) of the same requests."""
        self.failures = []
        self.faults = []
        self.endpoint = self.storage = ""

    def add_user(self, token, role="write"):
        self.users[token] = {"name": "user", "role": role}
        return token

    def fault(self, method, pattern, **how):
        """Spoil the next `times` requests that match, after as many as `after` says.

        A `status` is the answer, unhandled; `drop` closes the connection before or after a request is handled, and
        `hook` is called before it is.
        """
        self.faults.append(SimpleNamespace(**FAULT | {"method": method, "pattern": pattern} | how))

    def sent(self, method, pattern):
        return [code for verb, path, code in self.requests if verb == method and re.search(pattern, path)]

    def answer(self, request):
        """The response, or None to drop the connection."""
        fault = self.next_fault(request)
        if fault.status is not None:
            return Response(fault.status, fault.body, {"Content-Type": "application/json", **fault.headers})
        if fault.drop == "before":
            return None
        fault.hook()
        try:
            with self.store.lock:
                response = route(self, request)
        except HubError as error:
            status, message, code = error.args
            if status == 400:
                self.failures.append(f"{request.command} {request.path}: {message}")
            headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
            response = json_response({"error": message}, status, headers)
        return None if fault.drop == "after" else response

    def next_fault(self, request):
        with self.store.lock:
            for fault in self.faults:
                if fault.times and fault.method == request.command and re.search(fault.pattern, request.path):
                    if not fault.after:
                        fault.times -= 1
                        return fault
                    fault.after -= 1
        return SimpleNamespace(**FAULT)


class Handler(BaseHTTPRequestHandler):
    """One request as the routes see it: decoded path, query, headers, body, and the user who sent it."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet: two would wait 40 ms for each other
    disable_nagle_algorithm = True

    def asks(self, name, default):
        return self.query.get(name, [default])[0]

    def json(self):
        return json.loads(self.body)

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):  # the client went away
            self.close_connection = True

    def serve(self):
        hub, url = self.server.hub, urlsplit(self.path)
        self.path, self.query = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        index = len(hub.requests)
        hub.requests.append((self.command, self.path, 0))
        hub.tokens.append((self.path, self.headers.get("Authorization")))
        response = hub.answer(self)
        if response is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        hub.requests[index] = (self.command, self.path, response.status)
        self.send_response(response.status)
        for name, value in {"Content-Length": str(len(response.body)), **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve

    def log_message(self, *_):
        pass


@contextmanager
def running_hub():
    """A Hub on free ports of this host; at the end it must have understood every request."""
    hub = HubServer()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in ("hub", "storage")]
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for server in servers:
        server.hub, server.daemon_threads = hub, True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
    assert hub.failures == []


@serves("GET", "/api/whoami-v2", "user")
def whoami(hub, request):
    auth = {"type": "access_token", "accessToken": {"displayName": "token", "role": request.user["role"]}}
    return json_response({"type": "user", "name": request.user["name"], "orgs": [], "auth": auth})


@serves("GET", API, "read")
@serves("GET", f"{API}/revision/{REVISION}", "read")
def repository_info(hub, request, repository, revision="main"):
    commit = repository.resolve(revision)
    files = [
        {"rfilename": path, "size": blob.size, "blobId": blob.oid, **blob.about_lfs("sha256")}
        for path, blob in sorted(commit.tree.items())
    ]
    about = {"_id": "0" * 24, "id": repository.name, "author": repository.name.split("/")[0], "gated": False}
    return json_response({**about, "sha": commit.oid, "private": repository.private, "siblings": files})


@serves("GET", f"{API}/tree/{REVISION}(?:/(?P<folder>.+))?", "read")
def tree(hub, request, repository, revision, folder):
    deep = request.asks("recursive", "false").lower() in ("true", "1")
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    entries = {}
    for path, blob in sorted(repository.resolve(revision).tree.items()):
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if deep else min(2, len(parts))):
            name = prefix + "/".join(parts[:depth])
            entries[name] = {"type": "directory", "path": name, "oid": git_blob(name.encode()), "size": 0}
        if deep or len(parts) == 1:
            about = {"type": "file", "path": path, "oid": blob.oid, "size": blob.size}
            entries[path] = {**about, **blob.about_lfs("oid")}
    refuse(folder and not entries, 404, f"{folder} does not exist", "EntryNotFound")
    return json_response(list(entries.values()))


@serves("GET", f"{API}/refs", "read")
def refs(hub, request, repository):
    listed = {"converts": []}
    for name, kind, of_kind in (("branches", "heads", repository.branches), ("tags", "tags", repository.tags)):
        listed[name] = [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": oid} for n, oid in of_kind.items()]
    return json_response(listed)


@serves("GET", f"{API}/commits/{REVISION}", "read")
def commits(hub, request, repository, revision):
    """Pages of two, the newest first: a client that reads only the first finds too little."""
    listed = [
        {"id": commit.oid, "title": commit.title, "message": "", "date": MOMENT, "authors": [{"user": "user"}]}
        for commit in reversed(repository.history(revision))
    ]
    page = int(request.asks("p", "0"))
    response = json_response(listed[2 * page : 2 * page + 2])
    if listed[2 * page + 2 :]:
        response.headers["Link"] = f'<{hub.endpoint}{request.path}?p={page + 1}>; rel="next"'
    return response


@serves("GET", f"{API}/discussions", "read")
def discussions(hub, request, repository):
    """Pages of two: a client that reads only the first finds too little."""
    about = {"createdAt": MOMENT, "isPullRequest": True, "repo": {"name": repository.name, "type": repository.kind}}
    listed = [
        {"num": number, **about, **pull, "author": {"name": pull["author"]}}
        for number, pull in sorted(repository.pulls.items(), reverse=True)
    ]
    start = 2 * int(request.asks("p", "0"))
    return json_response({"discussions": listed[start : start + 2], "count": len(listed), "start": start})


@serves("GET", f"{GIT}/resolve/{REVISION}/(?P<path>.+)", "read")
def resolve(hub, request, repository, revision, path):
    commit = repository.resolve(revision)
    blob = commit.tree.get(path)
    refuse(blob is None, 404, "Entry not found", "EntryNotFound")
    headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{blob.oid}"'}
    if not blob.lfs:
        return ranged(hub.store.objects[blob.sha256], request, headers)
    linked = {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size)}
    return Response(302, b"", {**headers, **linked, "Location": f"{hub.storage}/objects/{blob.sha256}"})


@serves("GET", "/objects/(?P<oid>[0-9a-f]{64})")
def stored_object(hub, request, oid):
    refuse(request.headers.get("Authorization") is not None, 400, "the storage host was sent a token")
    return ranged(hub.store.objects[oid], request, {"ETag": f'"{oid}"'})


def ranged(data, request, headers):
    """The whole file, or the one range that was asked for (RFC 9110, section 14)."""
    headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if not asked:
        return Response(200, data, headers)
    first, last = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(206, data[first : last + 1], headers)


@serves("POST", "/api/repos/create", "user")
def create_repository(hub, request):
    values = request.json()
    owner, kind = values.get("organization") or request.user["name"], values.get("type") or "model"
    foreign = owner != request.user["name"] or request.user["role"] != "write"
    refuse(foreign, 403, f"You don't have the rights to create a model under the namespace {owner!r}.")
    name = f"{owner}/{values['name']}"
    url = f"{hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"
    if (kind, name) in hub.store.repositories:
        return json_response({"error": "You already created this model repo", "url": url}, 409)
    hub.store.create(kind, name, private=values.get("visibility") == "private")
    return json_response({"url": url, "name": name, "id": "0" * 24})


@serves("POST", "/api/validate-yaml")
def validate_yaml(hub, request):
    return json_response({"errors": [], "warnings": []})


@serves("DELETE", f"{API}/tag/{REVISION}", "write")
def delete_tag(hub, request, repository, revision):
    refuse(repository.tags.pop(revision, None) is None, 404, f"Tag doesn't exist: {revision}", "RevisionNotFound")
    return json_response({})


@serves("POST", f"{API}/tag/{REVISION}", "write")
def create_tag(hub, request, repository, revision):
    tag, commit = request.json()["tag"], repository.resolve(revision)
    refuse(tag in repository.tags, 409, f"Tag reference exists already: {tag}")
    repository.tags[tag] = commit.oid
    return json_response({})


@serves("POST", f"{API}/preupload/{REVISION}", "write")
def preupload(hub, request, repository, revision):
    head, listed = repository.resolve(revision), []
    for file in request.json()["files"]:
        mode = "lfs" if file["path"].endswith(LFS_SUFFIXES) else "regular"
        listed.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
        known = head.tree.get(file["path"])
        if known is not None:
            listed[-1]["oid"] = known.sha256 if known.lfs else known.oid
    return json_response({"files": listed})


@serves("POST", rf"{GIT}\.git/info/lfs/objects/batch", "write")
def lfs_batch(hub, request, repository):
    objects = request.json()["objects"]
    for wanted in objects:
        if wanted["oid"] not in hub.store.objects:
            wanted["actions"] = {
                "upload": {"href": f"{hub.storage}/upload/{wanted['oid']}?signature=granted"},
                "verify": {"href": f"{hub.endpoint}/api/lfs-verify/{repository.kind}s/{repository.name}"},
            }
    return json_response({"transfer": "basic", "objects": objects})


@serves("PUT", "/upload/(?P<oid>[0-9a-f]{64})")
def lfs_put(hub, request, oid):
    refuse(request.headers.get("Authorization") is not None, 400, "the storage host was sent a token")
    refuse(hub.store.keep(request.body) != oid, 400, f"an upload of {len(request.body)} other bytes")
    return json_response({}, headers={"ETag": f'"{oid}"'})


@serves("POST", rf"/api/lfs-verify/(?P<kind>model|dataset)s/{NAME}", "write")
def lfs_verify(hub, request, repository):
    oid = request.json()["oid"]
    refuse(oid not in hub.store.objects, 400, f"{oid} was not uploaded")
    return json_response({"message": "OK"})


@serves("POST", f"{API}/commit/{REVISION}", "write")
def commit(hub, request, repository, revision):
    (_, header), *lines = [json.loads(line).values() for line in request.body.splitlines()]
    parent, url = header.get("parentCommit"), f"{hub.endpoint}/{repository.name}"
    answer = {"success": True}
    if request.query.get("create_pr") == ["1"]:
        base, number = repository.resolve(parent or "main"), max(repository.pulls, default=0) + 1
        repository.pulls[number] = {"title": header["summary"], "status": "open", "author": request.user["name"]}
        revision = f"refs/pr/{number}"
        repository.branches[revision] = base.oid
        answer["pullRequestUrl"] = f"{url}/discussions/{number}"
    deleted = [value["path"] for key, value in lines if key == "deletedFile"]
    added = {value["path"]: added_file(hub, value) for key, value in lines if key != "deletedFile"}
    done = hub.store.commit(repository, revision, added, header["summary"], deleted, parent)
    return json_response({**answer, "commitOid": done.oid, "commitUrl": f"{url}/commit/{done.oid}"})


def added_file(hub, value):
    """One added file of a commit, in the commit itself or uploaded before."""
    if "content" in value:
        return hub.store.small(base64.b64decode(value["content"], validate=True))
    refuse(value["oid"] not in hub.store.objects, 400, f"{value['path']}: its content was never uploaded")
    return hub.store.large(value["oid"], value["size"])


@serves("POST", rf"{API}/discussions/(?P<number>\d+)/status", "write")
def change_status(hub, request, repository, number):
    pull, status = repository.pulls[int(number)], request.json()["status"]
    pull["status"] = status
    event = {"id": "1", "type": "status-change", "createdAt": MOMENT, "author": {"name": pull["author"]}}
    return json_response({"newStatus": {**event, "data": {"status": status}}})
