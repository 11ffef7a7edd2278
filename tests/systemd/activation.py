"""Plays systemd towards the binary: it owns the socket, reads the notifications, and restarts the
service again and again while clients ask. No client may be refused, and no watchdog may starve."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

RESTARTS = 4
CLIENTS = 4
LIMIT = 30
REQUEST = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

binary = sys.argv[1]
folder = tempfile.TemporaryDirectory()
listener = socket.create_server(("127.0.0.1", 0))
address = listener.getsockname()
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(os.path.join(folder.name, "notify"))
notify.settimeout(LIMIT)
log = open(os.path.join(folder.name, "log"), "w+")


def start():
    """Starts the service as systemd does: the socket is descriptor 3, and the process knows that
    it is meant."""
    environment = {
        "PATH": os.environ["PATH"],
        "PROXY_API_KEY": "a-key-of-the-proxy",
        "DASHSCOPE_API_KEYS": "sk-1,sk-2",
        "MODEL_IDS": "m",
        "STATE_PATH": os.path.join(folder.name, "state.json"),
        "LISTEN_FDS": "1",
        "NOTIFY_SOCKET": notify.getsockname(),
        "WATCHDOG_USEC": "2000000",
    }

    def give_socket():
        os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)

    return subprocess.Popen(
        ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0"', binary],
        env=environment,
        preexec_fn=give_socket,
        close_fds=False,
        stderr=log,
    )


def told(word):
    """What the service has told until `word` came."""
    lines = []
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        lines += notify.recv(4096).decode().splitlines()
        if word in lines:
            return lines
    raise TimeoutError(f"no {word} among {lines}")


def ask(outcomes, over):
    while not over.is_set():
        try:
            with socket.create_connection(address, timeout=LIMIT) as client:
                client.sendall(REQUEST)
                answer = b"".join(iter(lambda: client.recv(4096), b""))
            outcomes.append(answer[:12].decode())
        except OSError as error:
            outcomes.append(repr(error))


def stop(service):
    service.terminate()
    code = service.wait(LIMIT)
    assert code == 0, f"exit code {code}"
    assert "STOPPING=1" in told("STOPPING=1")


def main():
    service = start()
    try:
        told("READY=1")
        over = threading.Event()
        outcomes = []
        clients = [threading.Thread(target=ask, args=(outcomes, over)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        for _ in range(RESTARTS):
            told("WATCHDOG=1")
            stop(service)
            service = start()
            told("READY=1")
        over.set()
        for client in clients:
            client.join()
        # Draining answers 503, on connections that had been taken by then.
        wrong = [one for one in outcomes if one not in ("HTTP/1.1 200", "HTTP/1.1 503")]
        assert not wrong, f"{len(wrong)} of {len(outcomes)} requests failed: {wrong[:5]}"
        assert outcomes.count("HTTP/1.1 200") > RESTARTS, "hardly a request was served"
        print(f"activation: {len(outcomes)} requests over {RESTARTS} restarts, none refused")
        stop(service)
    except BaseException:
        log.seek(0)
        sys.stderr.write(log.read())
        raise
    finally:
        service.kill()
        service.wait()


main()
