"""What the cases share: folders, mounts, a proxy with its state in a chosen place, and what has to
hold of its answers and of its file."""

import hashlib
import http.client
import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "clients"))
from lab import PROXY_KEY, Pool
from standin import StandIn

LIMIT = 30  # seconds that anything may take on a slow machine
QUOTA = 1_000_000  # more than any case asks for: slots are used up by `lose_slot`
MODELS = ["m1", "m2", "m3"]
CHAT = {"model": "any", "messages": []}
# An ordinary user, who may not enter the folder in which a pool starts its proxy.
ORDINARY = 4242
AS_ORDINARY = ["env", "--chdir=/", "setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}",
               "--clear-groups"]


class World:
    """What `lab.Pool` asks of its lab: the binary, a folder, and the stand-in."""

    def __init__(self, binary, folder):
        folder.chmod(0o755)
        self.folder = folder
        # Where an ordinary user may start it.
        self.binary = shutil.copy(binary, folder / "dashscope-proxy")
        self.standin = StandIn()
        self.numbers = itertools.count(1)
        threading.Thread(target=self.standin.serve_forever, daemon=True).start()


class Case:
    """A folder of its own, and what has been started and mounted for it, until its end."""

    def __init__(self, world, name):
        self.world = world
        self.folder = world.folder / re.sub(r"\W+", "-", name)
        self.folder.mkdir()
        self.proxies, self.tracers, self.mounts = [], [], []

    def start(self, state, **spec):
        """A proxy on this state file."""
        proxy = Proxy(self, state, spec)
        self.proxies.append(proxy)
        proxy.start()
        return proxy

    def refuse(self, state, **spec):
        """Starts a proxy that must not start; what it said."""
        proxy = Proxy(self, state, spec)
        self.proxies.append(proxy)
        code = proxy.launch().wait(LIMIT)
        assert code == 74, f"exit code {code}"
        return proxy.text()

    def make(self, name):
        folder = self.folder / name
        folder.mkdir()
        return folder

    def tmpfs(self, name, options):
        folder = self.make(name)
        self.mount("-t", "tmpfs", "-o", options, "tmpfs", folder)
        return folder

    def mount(self, *arguments):
        command("mount", *arguments)
        self.mounts.append(arguments[-1])

    def mount_read_only(self, folder):
        """Over itself: nothing that has been opened before keeps this from being done."""
        self.mount("--bind", folder, folder)
        command("mount", "-o", "remount,bind,ro", folder)

    def unmount(self, place):
        self.mounts.remove(place)
        # A mounted file that is written is locked, and so in use.
        command("umount", *(["--lazy"] if place.is_file() else []), place)

    def end(self):
        for tracer in self.tracers:
            tracer.kill()
            tracer.wait()
        for proxy in self.proxies:
            proxy.process.kill()
            proxy.process.wait()
        for place in reversed(self.mounts):
            command("umount", "--lazy", place)

    def evidence(self):
        texts = [f"--- log of {proxy.state}\n{proxy.text()}" for proxy in self.proxies]
        shown = subprocess.run(["ls", "-laR", self.folder], capture_output=True, text=True)
        return "".join(texts) + "--- files\n" + shown.stdout


class Proxy(Pool):
    """A proxy, what its clients have been told, and the file that has to remember it."""

    def __init__(self, case, state, spec):
        settings = {"STATE_PATH": str(state), "RUST_LOG": "info", **spec.pop("env", {})}
        spec = {"models": MODELS, "quota": QUOTA, "env": settings, **spec}
        super().__init__(case.world, next(case.world.numbers), spec)
        self.state = state
        self.slots = {(label(key), model): (key, model)
                      for key in self.keys for model in spec["models"]}
        self.known = set()  # slots of which a client knows that they are used up
        self.served_by = None

    # --- requests --------------------------------------------------------------------------

    def request(self, method, path, body=None):
        host, port = self.address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT)
        try:
            headers = {"authorization": f"Bearer {PROXY_KEY}"}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def chat(self):
        """Also waits for the end of the request: what it taught has then been tried to write."""
        before = self.count(" request id=")
        answer, _ = self.request("POST", "/v1/chat/completions", CHAT)
        wait_for(lambda: self.count(" request id=") > before, "end of the request")
        return answer

    def serve(self, attempts=1):
        """A request that is served by the slot that served last, or by the next."""
        answer = self.chat()
        got = answer.status, answer.headers["x-proxy-attempts"]
        assert got == (200, str(attempts)), got
        self.served_by = answer.headers["x-proxy-key-hash"], answer.headers["x-proxy-model"]

    def use_up(self, slot):
        self.lab.standin.spent[self.slots[slot]] = QUOTA

    def lose_slot(self, count=1):
        """The slot that served last is used up, or that and the ones behind it; a client notices,
        and is served by another."""
        slots = list(self.slots)
        first = slots.index(self.served_by)
        lost = slots[first:first + count]
        for slot in lost:
            self.use_up(slot)
        self.serve(attempts=count + 1)
        self.known.update(lost)

    def lose_all(self):
        for slot in self.slots:
            self.use_up(slot)
        self.turn_away()
        self.known = set(self.slots)

    def turn_away(self):
        answer = self.chat()
        assert answer.status == 503, answer.status

    def health(self):
        answer, body = self.request("GET", "/health")
        assert answer.status == 200, answer.status
        return json.loads(body)

    def wait_writable(self, wanted):
        wait_for(lambda: self.health()["stateWritable"] is wanted, f"stateWritable: {wanted}")

    # --- its file and its log --------------------------------------------------------------

    def text(self):
        return self.log.read_text()

    def count(self, pattern):
        """How many lines of the log match."""
        return len(re.findall(pattern, self.text()))

    def content(self):
        """The bytes of the file; `None` when there is none."""
        try:
            return self.state.read_bytes()
        except FileNotFoundError:
            return None

    def cooling(self):
        return cooling(self.content())

    def leftovers(self):
        return [path.name for path in self.state.parent.iterdir() if path.name.endswith(".tmp")]

    def check_file(self):
        """The file remembers exactly what clients know, is private, and nothing lies beside it."""
        assert self.cooling() == self.known, (self.cooling(), self.known)
        assert self.state.stat().st_mode & 0o777 == 0o600
        assert not self.leftovers(), self.leftovers()
        for path in self.state.parent.iterdir():
            if path.is_file() and path.stat().st_size < 1_000_000:
                content = path.read_bytes()
                assert not any(key.encode() in content for key in self.keys), path

    def settle(self):
        """Afterwards all is well: the file, its lock, the stop, and the next start."""
        self.wait_writable(True)
        self.check_file()
        self.end_and_begin()

    def end_and_begin(self):
        code = self.stop()
        assert code == 0, f"exit code {code}"
        self.start()
        answer, body = self.request("GET", "/models/status")
        cools = {(slot["keyHash"], slot["id"]) for slot in json.loads(body)["models"]
                 if slot["cooldownUntil"]}
        assert cools == self.known, (cools, self.known)
        self.check_file()


def endure(proxy, begin, end, nudge=False):
    """Trouble that keeps the state from being written begins and ends while clients ask. With
    `nudge` it is a request that finds out that it is over."""
    proxy.serve()
    proxy.lose_slot()
    assert proxy.cooling() == proxy.known
    begin()
    before = proxy.content()
    proxy.lose_slot()
    proxy.wait_writable(False)
    proxy.serve()
    proxy.lose_slot()
    assert proxy.health()["ok"] is True
    assert proxy.content() == before
    end()
    if nudge:
        proxy.serve()
    proxy.wait_writable(True)
    wait_for(lambda: proxy.count("state written=true"), "word of it in the log")
    said = [proxy.count(f"state written={word}") for word in ("false", "true")]
    assert said == [1, 1], f"not said once each: {said}"
    proxy.settle()


def cooling(content):
    """The slots that cool, in a state file that has to be one."""
    state = json.loads(content)
    assert state["version"] == 1, content
    return {(slot["keyHash"][:12], slot["modelId"]) for slot in state["modelState"].values()
            if slot["cooldownUntil"] > time.time() * 1000}


def label(key):
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def wait_for(holds, what):
    deadline = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {LIMIT} s")
        time.sleep(0.02)


def command(*arguments):
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(done.args)}: {done.stderr.strip()}")


def fill(folder):
    """Takes what is left of the file system; what to remove when it shall have room again."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as ballast:
        try:
            for size in itertools.chain([4096] * 100_000, [1] * 4097):
                ballast.write(b"\0" * size)
        except OSError:
            return path
    raise RuntimeError("this file system does not get full")
