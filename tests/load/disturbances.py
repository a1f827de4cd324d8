"""What is done to a team while it works: workers are killed, the server restarted, the remote taken away."""

import itertools
import time

RESTARTS_AT = (0.25, 0.6)
"""Shares of the runs that have ended when the server is restarted."""
REMOTE_AWAY_AT = 0.4
REMOTE_AWAY_S = 30.0
FLOWS, CPUS = "flows", ("cpu-1", "cpu-2")
ENDED = "ended"
MARKER = "podium-store"
"""The file by which hosts know a remote."""


class Disturbances:
    """Does them when it is time; only the thread that started the processes may call it, as they end with it."""

    def __init__(self, team, began, every, most):
        self.done = []
        """Seconds since the runs were queued, kind and words of each."""
        self.made_anew = False
        """Whether someone made another remote in the place of the one that was away; a running push makes
        its folder, and does so again where it belongs."""
        self._team, self._began, self._every = team, began, every
        cpus = itertools.cycle(CPUS)
        self._victims = itertools.islice((name for pair in zip(itertools.repeat(FLOWS), cpus) for name in pair), most)
        self._next_kill, self._restarts, self._away_until = began + every, list(RESTARTS_AT), None

    def look(self, ended):
        now = time.monotonic()
        for name in (FLOWS, *CPUS):
            host = self._team.hosts[name]
            if host.worker.poll() is not None:
                self._note(ENDED, f"the worker of {name} had ended with {host.worker.returncode}, and was started")
                host.start_worker(*host.work)
        if now >= self._next_kill and ended < 1:
            self._next_kill = now + self._every
            if victim := next(self._victims, None):
                self._kill(victim)
        if self._restarts and ended >= self._restarts[0]:
            self._restarts.pop(0)
            self._note("server", "the Prefect server was killed and started again")
            self._team.server.stop()
            self._team.server.start()
        if not self.count("remote") and ended >= REMOTE_AWAY_AT:
            self._away_until = now + REMOTE_AWAY_S
            self._note("remote", f"the remote was renamed for {REMOTE_AWAY_S:.0f} s")
            self._team.remote.rename(self._elsewhere)
        if self._away_until is not None and now >= self._away_until:
            self.bring_back()

    def bring_back(self):
        """Put the remote back, if it is away."""
        if self._away_until is None:
            return
        self._away_until, remote = None, self._team.remote
        if remote.exists():
            self.made_anew = self.made_anew or (remote / MARKER).exists()
            remote.rename(remote.with_name("made-again"))
        self._elsewhere.rename(remote)

    @property
    def _elsewhere(self):
        return self._team.remote.with_name("away")

    def count(self, kind):
        return sum(kind == noted for _, noted, _ in self.done)

    def _kill(self, name):
        host = self._team.hosts[name]
        self._note(name, f"SIGKILL to the worker of {name}")
        host.worker.kill()
        host.worker.wait()
        host.start_worker(*host.work)

    def _note(self, kind, what):
        self.done.append((time.monotonic() - self._began, kind, what))


def start_workers(team, flows):
    for name in (FLOWS, *CPUS):
        host = team.host(name)
        host.work = ("flows", "default", "cpu", "--limit", str(flows)) if name == FLOWS else ("cpu", "default", "cpu")
        host.start_worker(*host.work)
