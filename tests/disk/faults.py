"""Every system call of a write of the state file, in turn, fails or is the last of its process.

strace stands between the kernel and one thread, the one that writes: no socket is hit. Which calls
a write makes is learned from the trace of one.
"""

import ast
import itertools
import os
import re
import shutil
import signal
import subprocess
from functools import partial

from harness import CHAT, LIMIT, cooling, wait_for

# A write that loses one of these is none the worse for it.
DISPENSABLE = r"(?:close|fchmod|fcntl|unlink) of .*|.* of state\.json\.lock|statx of data"
# Where the file is replaced, all that is left to do with the new one is to lock it.
DISPENSABLE_REPLACED = DISPENSABLE + r"|(?:flock|openat|statx) of state\.json(?: \(deleted\))?"


class Tracer:
    """strace on the thread of a proxy that writes the state."""

    def __init__(self, case, proxy, *options):
        tasks = f"/proc/{proxy.process.pid}/task"
        thread = next(task for task in os.listdir(tasks)
                      if open(f"{tasks}/{task}/comm").read().strip() == "state-writer")
        self.output = case.folder / "trace"
        said = case.folder / "strace"
        with said.open("w") as stderr:
            self.process = subprocess.Popen(
                ["strace", "-p", thread, "-o", self.output, "-y", "-s", "1000000", *options],
                stderr=stderr)
        case.tracers.append(self.process)
        wait_for(lambda: "attached" in said.read_text(), "strace")

    def detach(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LIMIT)

    def calls(self):
        """What was called, in order: names and the rest of their lines."""
        found = re.findall(r"^(\w+)\((.*)$", self.output.read_text(), re.MULTILINE)
        return [Call(*call) for call in found]


class Call:
    def __init__(self, name, rest):
        self.name, self.rest = name, rest

    def shown(self):
        """The call and the file that it is about."""
        rest = re.sub("AT_FDCWD<[^>]*>", "", self.rest)
        path = re.search(r'[<"]/[^>"]*/([^/>"]*)[>"]', rest)[1]
        return f"{self.name} of {re.sub(r'[.][0-9.]+tmp', '.*.tmp', path)}"

    def written(self):
        """The bytes that a write was to write."""
        return ast.literal_eval("b" + re.search(r'"(?:[^"\\]|\\.)*"', self.rest)[0])


class Exhaustion:
    """The last slot is used up: one write, which makes the file longer."""

    def prepare(self, proxy):
        pass

    def act(self, proxy):
        proxy.use_up(proxy.served_by)
        answer, _ = proxy.request("POST", "/v1/chat/completions", CHAT)
        assert answer.status == 503, answer.status
        proxy.known = set(proxy.slots)


class Enabling:
    """A slot is switched on again: one write, which makes the file shorter."""

    def prepare(self, proxy):
        proxy.request("POST", "/models/disable", {"model": "m1"})

    def act(self, proxy):
        answer, _ = proxy.request("POST", "/models/enable", {"model": "m1"})
        assert answer.status == 200, answer.status


class Way:
    """How a file is written, and the change that makes it be written."""

    def __init__(self, name, is_mounted, change):
        self.name, self.is_mounted, self.change = name, is_mounted, change

    def start(self, case):
        """A proxy with one slot used up and one left, and all of that on disk."""
        state = case.make("data") / "state.json"
        if self.is_mounted:
            real = case.make("host") / "state.json"
            for path in (real, state):
                path.touch()
            case.mount("--bind", real, state)
        proxy = case.start(state, keys=1, models=["m1", "m2"])
        proxy.serve()
        proxy.lose_slot()
        self.change.prepare(proxy)
        return proxy

    def learn(self, case):
        """The calls of a write that are about the state: each with how many of its name came
        before it on this thread, itself included."""
        proxy = self.start(case)
        tracer = Tracer(case, proxy)
        self.change.act(proxy)
        tracer.detach()
        counts, found = {}, []
        for call in tracer.calls():
            counts[call.name] = counts.get(call.name, 0) + 1
            if f"{proxy.state.parent}" in call.rest:
                found.append((call, counts[call.name]))
        assert {call.name for call, _ in found} >= {"openat", "write", "fsync", "rename"}, found
        return found


WAYS = [
    Way("replacing", False, Exhaustion()),
    Way("growing in place", True, Exhaustion()),
    Way("shrinking in place", True, Enabling()),
]


def check_rest(way, proxy, tracer, before):
    """The file is byte for byte the old or the new one; in place, there may be blanks behind it."""
    states = [before] + [call.written() for call in tracer.calls()
                         if call.name == "write" and ".tmp>" in call.rest]
    content = proxy.content()
    assert (content.rstrip(b" ") if way.is_mounted else content) in states, content
    return content


def killed(way, name, count, case):
    proxy = way.start(case)
    told_before, before = proxy.known, proxy.content()
    tracer = Tracer(case, proxy, "-e", f"inject={name}:signal=KILL:when={count}")
    try:
        way.change.act(proxy)
    except OSError:
        pass  # nobody was told anything
    code = proxy.process.wait(LIMIT)
    assert code == -signal.SIGKILL, code
    tracer.process.wait(LIMIT)
    at_rest = cooling(check_rest(way, proxy, tracer, before))
    assert at_rest >= told_before and at_rest >= proxy.known, (at_rest, proxy.known)
    proxy.known = at_rest
    proxy.start()
    proxy.check_file()
    assert ".bak." not in " ".join(os.listdir(proxy.state.parent))
    way.change.act(proxy)
    proxy.settle()


def failing_once(way, name, count, is_noticed, case):
    proxy = way.start(case)
    before = proxy.content()
    tracer = Tracer(case, proxy, "-e", f"inject={name}:error=EIO:when={count}")
    way.change.act(proxy)
    check_rest(way, proxy, tracer, before)
    if is_noticed:
        # Nobody asks for anything more: the store tries again by itself.
        wait_for(lambda: proxy.count("state written=true"), "second try")
    else:
        # What has been left undone is made up for by the next write.
        proxy.request("POST", "/models/disable", {"model": "m2"})
    assert "(INJECTED)" in tracer.output.read_text()
    tracer.detach()
    assert proxy.count("state written=false") == is_noticed
    proxy.settle()


def failing(way, name, count, is_noticed, case):
    proxy = way.start(case)
    before = proxy.content()
    tracer = Tracer(case, proxy, "-e", f"inject={name}:error=ENOSPC:when={count}+")
    way.change.act(proxy)
    if is_noticed:
        proxy.wait_writable(False)
    for _ in range(2):
        proxy.request("POST", "/models/disable", {"model": "m1"})
        proxy.request("POST", "/models/enable", {"model": "m1"})
        assert proxy.health()["ok"] is True
    check_rest(way, proxy, tracer, before)
    if is_noticed:
        proxy.wait_writable(False)
        # The thread's own log goes through `write` as well.
        assert proxy.count("state written=false") == 1 or name == "write", "said once"
    assert "(INJECTED)" in tracer.output.read_text()
    tracer.detach()
    proxy.request("POST", "/models/disable", {"model": "m2"})
    proxy.wait_writable(True)
    assert b'"disabled:*:m2"' in proxy.content()
    proxy.settle()


def hanging(case):
    way = WAYS[0]
    proxy = way.start(case)
    before = proxy.content()
    # Much longer than the case takes: it is the end of the tracer that ends the delay.
    tracer = Tracer(case, proxy, "-e", "inject=fsync:delay_enter=1000s:when=1")
    way.change.act(proxy)
    proxy.wait_writable(False)
    for _ in range(3):
        proxy.request("POST", "/models/disable", {"model": "m1"})
        assert proxy.chat().status == 503
    assert proxy.count("state written=pending") == 1, "said once"
    assert proxy.content() == before
    tracer.detach()
    wait_for(lambda: proxy.count("state written=true"), "end of the write")
    proxy.settle()


def in_order(place, case):
    """Synced, then renamed, then the folder synced; in place, synced before the copy goes."""
    trace = case.folder / "trace"
    folder = case.make("data")
    state = folder / "state.json"
    if place == "a mounted file":
        (case.folder / "host").touch()
        state.touch()
        case.mount("--bind", case.folder / "host", state)
    if place == "a link":
        state = case.make("links") / "state.json"
        state.symlink_to(folder / "state.json")
    proxy = case.start(state, command=["strace", "-D", "-ff", "-o", trace, "-y"])
    proxy.serve()
    proxy.lose_slot()
    if place == "a folder that is removed":
        shutil.rmtree(folder)
    proxy.lose_slot()
    assert proxy.stop() == 0
    # A write each for the start, and for what the three requests learned.
    steps = "".join(step(line, folder / "state.json") for line in writer_trace(case, trace))
    replaced, in_place = "wsRf", "wsbfo+cSu"
    pattern = in_place if place == "a mounted file" else replaced
    assert re.fullmatch(f"(?:{pattern}){{3,}}", steps), steps


def writer_trace(case, trace):
    """The lines of the one thread that renames."""
    threads = [path.read_text() for path in case.folder.glob(f"{trace.name}.*")]
    found = [text.splitlines() for text in threads if "rename(" in text]
    assert len(found) == 1, [text[:200] for text in found]
    return found[0]


def step(line, state):
    """A letter for a call that matters if the power fails."""
    letters = {
        rf"write\(\d+<{state}[.0-9]+tmp>": "w",
        rf"fsync\(\d+<{state}[.0-9]+tmp>\) += 0": "s",
        rf'rename\("{state}[.0-9]+tmp", "{state}"\) += 0': "R",
        rf'rename\("{state}[.0-9]+tmp", "{state}"\) += -1 EBUSY': "b",
        rf"fsync\(\d+<{state.parent}>\) += 0": "f",
        rf"pwrite64\(\d+<{state}>": "o",
        rf"ftruncate\(\d+<{state}>": "c",
        rf"fsync\(\d+<{state}>\) += 0": "S",
        rf'unlink\("{state}[.0-9]+tmp"\) += 0': "u",
        rf"p?write(?:64|v)?\(\d+<{state.parent}": "?",
    }
    return next((letter for call, letter in letters.items() if re.match(call, line)), "")


def cases(learn):
    """`learn(name, act)` runs a function with a case of its own and returns what that returns."""
    found = {"a disk that hangs": hanging}
    for place in ["a file", "a link", "a folder that is removed", "a mounted file"]:
        found[f"order of the calls, {place}"] = partial(in_order, place)
    for way in WAYS:
        numbers = itertools.count(1)
        for call, count in learn(f"learning, {way.name}", way.learn):
            name = f"{way.name}, call {next(numbers)}, {call.shown()}"
            dispensable = DISPENSABLE if way.is_mounted else DISPENSABLE_REPLACED
            is_noticed = not re.fullmatch(dispensable, call.shown())
            found[f"{name}: killed"] = partial(killed, way, call.name, count)
            found[f"{name}: fails once"] = partial(failing_once, way, call.name, count, is_noticed)
            found[f"{name}: fails"] = partial(failing, way, call.name, count, is_noticed)
    return found
