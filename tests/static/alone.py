"""Runs the binary in a root that holds nothing else but etc/resolv.conf, as nobody, in a network
with nothing but a name server and an upstream with TLS, whose authority is unknown at first."""

import collections
import http.client
import http.server
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "networks"))
import own_network
from own_network import A, AAAA, NO_ERROR, NO_SUCH_NAME, raise_loopback

LIMIT = 30
NAME = "upstream.test"
NOBODY = 65534
PROXY_KEY = "a-key-of-the-proxy"
EXHAUSTED = {"error": {"code": "AllocationQuota.FreeTierOnly", "message": "no more", "type": "x"}}
CHAT = {"object": "chat.completion", "choices": [], "usage": {"total_tokens": 3}}

binary, scratch = sys.argv[1:]


class NameServer(own_network.NameServer):
    """Knows one name, which has an IPv4 address and no other."""

    def __init__(self):
        super().__init__()
        self.asked = collections.Counter()

    def look_up(self, name, kind):
        self.asked[name, {A: "A", AAAA: "AAAA"}.get(kind, kind)] += 1
        if name != NAME:
            return NO_SUCH_NAME, []
        return NO_ERROR, ["127.0.0.1"] if kind == A else []


class Upstream(http.server.ThreadingHTTPServer):
    """A DashScope with TLS of one version: the first key is used up, every other is served."""

    def __init__(self, version=None):
        super().__init__(("127.0.0.1", 0), Answering)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(f"{scratch}/upstream.pem", f"{scratch}/upstream.key")
        if version is not None:
            self.context.minimum_version = self.context.maximum_version = version
        self.versions, self.keys, self.refusals = [], [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, request, client_address):
        try:
            wrapped = self.context.wrap_socket(request, server_side=True)
        except OSError as error:
            self.refusals.append(str(error))
            return
        with wrapped:
            self.versions.append(wrapped.version())
            super().finish_request(wrapped, client_address)


class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.tell(404, {})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.keys.append(self.headers["authorization"])
        if self.headers["authorization"] == "Bearer sk-1":
            self.tell(403, EXHAUSTED)
        else:
            self.tell(200, CHAT)

    def tell(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Root:
    """An empty root, and what runs in it."""

    def __init__(self, path, knows_names=True, knows_authority=False):
        self.path = Path(path)
        shutil.copy(binary, self.path / "dashscope-proxy")
        os.chown(self.path, NOBODY, NOBODY)
        if knows_names:
            (self.path / "etc").mkdir()
            (self.path / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
        if knows_authority:
            shutil.copy(f"{scratch}/ca.pem", self.path / "ca.pem")
        self.ca = {"UPSTREAM_CA_FILE": "/ca.pem"} if knows_authority else {}
        self.log = ""

    def start(self, *arguments, origin=None):
        def enter():
            os.chroot(self.path)
            os.chdir("/")
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

        settings = {}
        if origin is not None:
            settings = self.ca | {
                "PROXY_API_KEY": PROXY_KEY,
                "DASHSCOPE_API_KEYS": "sk-1,sk-2",
                "MODEL_IDS": "m",
                "PORT": "0",
                "STATE_PATH": "/state/proxy-state.json",
                "UPSTREAM_BASE_URL": f"{origin}/apps/anthropic",
                "OPENAI_UPSTREAM_BASE_URL": f"{origin}/compatible-mode/v1",
                "NATIVE_UPSTREAM_BASE_URL": f"{origin}/api/v1",
            }
        return subprocess.Popen(
            ["/dashscope-proxy", *arguments],
            env=settings,
            preexec_fn=enter,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def command(self, *arguments, origin=None):
        """What a command says, and its exit code."""
        process = self.start(*arguments, origin=origin)
        try:
            text, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
        return text, process.returncode

    @contextmanager
    def serving(self, *arguments, origin=None):
        """The address of a service that has to come up, and to go when it is asked to."""
        process = self.start(*arguments, origin=origin)
        listening = threading.Event()

        def read():
            for line in process.stdout:
                self.log += line
                if " listening address=" in line:
                    listening.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            assert listening.wait(LIMIT), "it does not listen"
            yield re.search(r" listening address=(\S+)", self.log)[1]
            process.terminate()
            code = process.wait(LIMIT)
            assert code == 0, f"exit code {code} after SIGTERM"
        finally:
            process.kill()
            process.wait()
            reader.join()
        troubles = [line for line in self.log.splitlines() if re.search(r"Z (WARN|ERROR) ", line)]
        assert not troubles, f"the log has warnings: {troubles}"

    def holds(self):
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*"))


def ask(address, key=PROXY_KEY):
    """One chat request: status and body."""
    client = http.client.HTTPConnection(address, timeout=LIMIT)
    headers = {"authorization": f"Bearer {key}"}
    client.request("POST", "/v1/chat/completions", '{"model":"any","messages":[]}', headers)
    answer = client.getresponse()
    body = answer.read().decode()
    client.close()
    return answer.status, body


def commands(root):
    text, code = root.command("--version")
    assert code == 0 and text.startswith("dashscope-proxy "), (text, code)
    print(f"alone: {text.strip()}")


def demo(root):
    with root.serving("demo") as address:
        served = ask(address, key="demo-proxy-key-0001")
        assert served[0] == 200, served
    left = [path for path in root.holds() if "demo" in path]
    assert not left, f"the demo left {left}"
    print("alone: the demo serves")


def unknown_authority(root):
    """The name is found, and the bundled roots are what refuses this upstream."""
    upstream = Upstream()
    origin = f"https://{NAME}:{upstream.server_port}"
    with root.serving(origin=origin) as address:
        status, body = ask(address)
        assert status == 502 and "UnknownIssuer" in body, (status, body)
    assert names.asked[NAME, "A"], f"the name server was asked for {names.asked}"
    assert upstream.refusals and not upstream.keys, "upstream was told a key"
    text, code = root.command("check", origin=origin)
    assert code == 1 and "UnknownIssuer" in text, (text, code)
    print(f"alone: {body}")


def known_authority(root, version):
    upstream = Upstream(version)
    origin = f"https://{NAME}:{upstream.server_port}"
    with root.serving(origin=origin) as address:
        status, body = ask(address)
        assert (status, json.loads(body)) == (200, CHAT), (status, body)
    assert upstream.keys == ["Bearer sk-1", "Bearer sk-2"], upstream.keys
    state = json.loads((root.path / "state/proxy-state.json").read_text())
    assert "cooldownUntil" in json.dumps(state), state
    text, code = root.command("check", origin=origin)
    assert code == 0, (text, code)
    print(f"alone: served over {upstream.versions[0]} after one rotation; {root.holds()}")


def no_names(root):
    upstream = Upstream()
    with root.serving(origin=f"https://127.0.0.1:{upstream.server_port}") as address:
        assert ask(address)[0] == 200
    print("alone: without resolv.conf an address still serves")


@contextmanager
def fresh(**has):
    """A new root. Says what there is to see when something fails in it."""
    with tempfile.TemporaryDirectory(dir=scratch) as path:
        root = Root(path, **has)
        try:
            yield root
        except BaseException:
            sys.stderr.write(f"{root.holds()}\n{root.log}names: {names.asked}\n")
            raise


# Everybody may pass, nobody looks: the roots belong to nobody.
os.chmod(scratch, 0o711)
raise_loopback()
names = NameServer()
names.start()
with fresh() as root:
    commands(root)
with fresh() as root:
    demo(root)
with fresh() as root:
    unknown_authority(root)
for tls in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    with fresh(knows_authority=True) as root:
        known_authority(root, tls)
with fresh(knows_names=False, knows_authority=True) as root:
    no_names(root)
