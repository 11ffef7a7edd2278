"""lab.py BINARY: the stand-in of DashScope, and proxies in front of it, for tests in any language.

Prints the address of its control server. A pool is a proxy of its own with keys of its own:

    POST /pools {"keys": 2, "models": [...], "quota": 1, "limits": {}, "env": {}}
                                  -> {"id", "address", "key"}; `limits` as in standin.py
    GET /pools/ID/calls       what the stand-in was asked with this pool's keys, keys as k1, k2, …
    GET /pools/ID/log         the proxy's log
    POST /pools/ID/restart    the proxy ends and starts again on the same state; -> {"address"}
    DELETE /pools/ID          the proxy is stopped; its exit code is in the answer
    POST /gates/NAME          releases one more event

SIGTERM ends it and every proxy.
"""

import ctypes
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from standin import StandIn

PROXY_KEY = "proxy-key-of-the-client-tests"
MODELS = ["qwen-max", "qwen-plus"]


LIBC = ctypes.CDLL(None)  # before any fork: loading is not safe between that and an exec


def die_with_parent(signal=signal.SIGKILL):
    """For a `preexec_fn`: however the thread that starts a process ends, the process ends too."""
    LIBC.prctl(1, signal)  # PR_SET_PDEATHSIG


class Pool:
    """A proxy with keys of its own. With `command`, this starts it: the program and its arguments
    before the path of the binary."""

    def __init__(self, lab, number, spec):
        self.lab = lab
        self.command = [*spec.get("command", ()), lab.binary]
        self.keys = [f"sk-pool{number}-key{n}" for n in range(1, spec.get("keys", 2) + 1)]
        lab.standin.add_keys(self.keys, spec.get("quota"), spec.get("limits"))
        self.folder = Path(tempfile.mkdtemp(dir=lab.folder))
        self.log = self.folder / "log"
        origin = lab.standin.origin
        self.env = {
            "PROXY_API_KEY": PROXY_KEY,
            "DASHSCOPE_API_KEYS": ",".join(self.keys),
            "MODEL_IDS": ",".join(spec.get("models", MODELS)),
            "PORT": "0",
            "UPSTREAM_BASE_URL": origin + "/apps/anthropic",
            "OPENAI_UPSTREAM_BASE_URL": origin + "/compatible-mode/v1",
            "NATIVE_UPSTREAM_BASE_URL": origin + "/api/v1",
            "STATE_PATH": str(self.folder / "state.json"),
            "RUST_LOG": "debug",
            **spec.get("env", {}),
        }

    def launch(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, preexec_fn=die_with_parent,
            )
        return self.process

    def start(self):
        seen = self.log.stat().st_size if self.log.exists() else 0
        self.launch()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self.process.poll() is None:
            text = self.log.read_bytes()[seen:].decode()
            if found := re.search(r" listening address=(\S+)", text):
                self.address = found[1]
                return
            time.sleep(0.01)
        self.process.kill()
        self.process.wait()
        raise RuntimeError("the proxy did not start:\n" + self.log.read_text())

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def calls(self):
        names = {key: f"k{n}" for n, key in enumerate(self.keys, 1)}
        calls = self.lab.standin.calls_of(names)
        return [call | {"key": names[call["key"]]} for call in calls]


class Lab(HTTPServer):
    """One thread for all requests: `die_with_parent` is about the thread that started a proxy."""

    def __init__(self, binary, folder):
        super().__init__(("127.0.0.1", 0), Control)
        self.binary, self.folder = binary, folder
        self.standin = StandIn()
        threading.Thread(target=self.standin.serve_forever, daemon=True).start()
        self.pools, self.numbers = {}, itertools.count(1)


class Control(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def serve(self):
        lab = self.server
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        match self.command, *self.path.strip("/").split("/"):
            case "POST", "pools":
                id = str(next(lab.numbers))
                pool = lab.pools[id] = Pool(lab, id, json.loads(body))
                pool.start()
                self.answer({"id": id, "address": pool.address, "key": PROXY_KEY})
            case "GET", "pools", id, "calls":
                self.answer(lab.pools[id].calls())
            case "GET", "pools", id, "log":
                self.answer(lab.pools[id].log.read_text())
            case "POST", "pools", id, "restart":
                lab.pools[id].stop()
                lab.pools[id].start()
                self.answer({"address": lab.pools[id].address})
            case "DELETE", "pools", id:
                self.answer({"code": lab.pools.pop(id).stop()})
            case "POST", "gates", name:
                lab.standin.release(name)
                self.answer({})
            case _:
                self.send_error(404)

    do_GET = do_POST = do_DELETE = serve


def main():
    die_with_parent(signal.SIGTERM)
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(os.path.realpath(sys.argv[1]), folder)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print(f"http://127.0.0.1:{lab.server_address[1]}", flush=True)
        try:
            lab.serve_forever()
        finally:
            for pool in lab.pools.values():
                pool.stop()


if __name__ == "__main__":
    main()
