"""Plays systemd towards the binary: owns the socket, starts the service, reads what it tells. And
plays DashScope towards it."""

import contextlib
import http.server
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

# Seconds after which something that should have happened has not. No test measures time.
LIMIT = 60
KEY = "a-key-of-the-proxy"
PLACEHOLDER = "replace-me-with-a-long-random-key"


class Systemd:
    """One service with its socket, its state and its log, as the units set them up."""

    def __init__(self, binary, example, upstream):
        self.binary, self.upstream = binary, upstream
        self.folder = tempfile.TemporaryDirectory()
        self.env_file = os.path.join(self.folder.name, "env")
        with open(example) as text, open(self.env_file, "w") as filled:
            filled.write(text.read().replace(PLACEHOLDER, KEY).replace("replace-me", "filled-in"))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(os.path.join(self.folder.name, "notify"))
        self.notify.settimeout(LIMIT)
        self.log = open(os.path.join(self.folder.name, "log"), "a+")
        self.service = None

    def start(self):
        """Starts the service as systemd does: the socket is descriptor 3, and the process knows
        that it is meant. Returns once it is ready."""
        environment = {
            "PATH": os.environ["PATH"],
            "OPENAI_UPSTREAM_BASE_URL": self.upstream.url,
            "STATE_PATH": os.path.join(self.folder.name, "state.json"),
            "LISTEN_FDS": "1",
            "NOTIFY_SOCKET": self.notify.getsockname(),
            "WATCHDOG_USEC": "2000000",
        }

        def give_socket():
            os.dup2(self.listener.fileno(), 3)
            os.set_inheritable(3, True)

        self.service = subprocess.Popen(
            ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0" --env-file "$1"', self.binary, self.env_file],
            env=environment,
            preexec_fn=give_socket,
            close_fds=False,
            stderr=self.log,
        )
        self.told("READY=1")

    def told(self, word):
        """Waits until the service has told `word`, and returns the names and values that were
        told with it."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            try:
                lines = self.notify.recv(4096).decode().splitlines()
            except TimeoutError:
                break
            if word in lines:
                return dict(line.split("=", 1) for line in lines)
        raise TimeoutError(f"the service has not told {word}")

    def told_so_far(self):
        """Every line that has been told and not been read."""
        lines = []
        self.notify.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                lines += self.notify.recv(4096).decode().splitlines()
        self.notify.settimeout(LIMIT)
        return lines

    def logged(self, text, times):
        """Waits until the log has `text` so many times."""
        deadline = time.monotonic() + LIMIT
        while self.read_log().count(text) < times:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the log has not {times} times {text}")
            time.sleep(0.02)

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def ended(self):
        """Waits for the orderly end of a service that has been asked to stop."""
        code = self.service.wait(LIMIT)
        assert code == 0, f"exit code {code}"

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if self.service:
            self.service.kill()
            self.service.wait()
        if error:
            sys.stderr.write(self.read_log())


class Upstream(http.server.ThreadingHTTPServer):
    """Answers every chat at once, and every stream with one event, until `let_go` is set."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Chat)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.let_go = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Chat(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two small writes.
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        if b'"stream":true' not in body:
            answer = b'{"choices":[{"message":{"role":"assistant","content":"yes"}}]}'
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b'data: {"choices":[{"delta":{"content":"begun"}}]}\n\n')
        self.server.let_go.wait(LIMIT)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


def health():
    return b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def chat(stream):
    """A request for a chat."""
    body = b'{"model":"m","messages":[{"role":"user","content":"?"}],"stream":%s}'
    body %= b"true" if stream else b"false"
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_all(client):
    """What still comes on a connection."""
    return b"".join(iter(lambda: client.recv(4096), b""))
