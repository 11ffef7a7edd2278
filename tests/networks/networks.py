"""Names whose AAAA never answers, black holes among the addresses, addresses that move."""

import http.client
import http.server
import json
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import own_network
from own_network import A, AAAA, NO_ERROR, raise_loopback

LIMIT = 30
CONNECT_LIMIT = 4
PORT = 8080
KEY = "a-key-of-the-proxy-of-this-test"

binary, scratch = sys.argv[1:]


class NameServer(own_network.NameServer):
    """Answers for A with what it is told, and for AAAA with nothing or not at all."""

    def __init__(self):
        super().__init__()
        self.addresses, self.is_silent = [], False

    def look_up(self, name, kind):
        if kind == AAAA and self.is_silent:
            return None
        return NO_ERROR, self.addresses if kind == A else []


class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"choices":[]}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def upstream(address):
    http.server.ThreadingHTTPServer.allow_reuse_address = True
    with http.server.ThreadingHTTPServer((address, PORT), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def black_hole(address):
    """A listener whose queue is full: whoever connects hears nothing."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, PORT))
    listener.listen(0)
    crowd = [listener]
    while True:
        one = socket.socket()
        one.settimeout(0.3)
        try:
            one.connect((address, PORT))
        except TimeoutError:
            return crowd
        crowd.append(one)


@contextmanager
def proxy(name):
    origin = f"http://{name}:{PORT}"
    process = subprocess.Popen([binary], stderr=subprocess.PIPE, text=True, cwd=scratch, env={
        "PROXY_API_KEY": KEY, "DASHSCOPE_API_KEYS": "sk-1", "MODEL_IDS": "m", "PORT": "0",
        "STATE_PATH": f"{scratch}/{name}.json", "CONNECT_TIMEOUT_SECONDS": str(CONNECT_LIMIT),
        "OPENAI_UPSTREAM_BASE_URL": f"{origin}/v1", "UPSTREAM_BASE_URL": origin,
        "NATIVE_UPSTREAM_BASE_URL": origin,
    })
    for line in process.stderr:
        if found := re.search(r" listening address=127.0.0.1:(\d+)", line):
            break
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        yield int(found[1])
        process.terminate()
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()


def ask(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    body = json.dumps({"model": "any", "messages": []})
    started = time.monotonic()
    connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {KEY}"})
    status = connection.getresponse().status
    connection.close()
    return status, time.monotonic() - started


def an_aaaa_that_never_answers(names):
    names.addresses, names.is_silent = ["127.0.0.1"], True
    with upstream("127.0.0.1"), proxy("silent.test") as port:
        started, statuses = time.monotonic(), []
        while 200 not in statuses:
            assert time.monotonic() - started < LIMIT, f"for ever: {statuses}"
            statuses.append(ask(port)[0])
        assert [ask(port)[0] for _ in range(3)] == [200] * 3
    names.is_silent = False
    return f"{statuses}, then served"


def black_holes_among_the_addresses(names):
    holes = [f"127.0.0.{number}" for number in (9, 10, 11)]
    names.addresses = [*holes, "127.0.0.12"]
    kept = [black_hole(hole) for hole in holes]
    with upstream("127.0.0.12"), proxy("holes.test") as port:
        first, second = ask(port), ask(port)
        assert (first[0], second[0]) == (200, 200), (first, second)
        assert first[1] < CONNECT_LIMIT, f"{first[1]:.1f} s: each was waited for"
    del kept
    return f"{1000 * first[1]:.0f} ms, then {1000 * second[1]:.0f} ms"


def an_address_that_moves(names):
    names.addresses = ["127.0.0.20"]
    with proxy("moving.test") as port:
        with upstream("127.0.0.20"):
            assert ask(port)[0] == 200
        names.addresses = ["127.0.0.21"]
        with upstream("127.0.0.21"):
            status, took = ask(port)
    assert status == 200, status
    return f"{1000 * took:.0f} ms"


raise_loopback()
server = NameServer()
server.start()
for test in (an_aaaa_that_never_answers, black_holes_among_the_addresses, an_address_that_moves):
    print(f"{test.__name__}: {test(server)}", flush=True)
print("3 passed, 0 failed")
