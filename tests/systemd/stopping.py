"""stopping.py BINARY ENV_EXAMPLE: a stop that waits for a stream tells systemd again and again that
it is alive and how much longer it may take, and ends once the stream has."""

import socket
import sys

from pretend import LIMIT, Systemd, Upstream, chat, read_all

# More than one, so that a sign of life from before the stop proves nothing.
SIGNS = 3


def main(binary, example):
    upstream = Upstream()
    with Systemd(binary, example, upstream) as systemd:
        systemd.start()
        with socket.create_connection(systemd.address, timeout=LIMIT) as client:
            client.sendall(chat(stream=True))
            answer = b""
            while b"begun" not in answer:
                more = client.recv(4096)
                assert more, f"the stream has ended: {answer}"
                answer += more
            systemd.service.terminate()
            left = [int(systemd.told("STOPPING=1")["EXTEND_TIMEOUT_USEC"])]
            for _ in range(SIGNS):
                left.append(int(systemd.told("WATCHDOG=1")["EXTEND_TIMEOUT_USEC"]))
            assert systemd.service.poll() is None, "it has not waited for the stream"
            assert left == sorted(left, reverse=True) and left[-1] > 0, f"no countdown: {left}"
            upstream.let_go.set()
            answer += read_all(client)
        assert b"[DONE]" in answer, f"the stream was cut: {answer}"
        systemd.ended()
    print(f"stopping: {SIGNS} signs of life while a stream held the stop up")


main(*sys.argv[1:])
