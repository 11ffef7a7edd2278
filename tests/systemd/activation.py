"""activation.py BINARY ENV_EXAMPLE: the service is restarted again and again while clients ask. No
client may be refused, every chat is answered, and no watchdog may starve."""

import socket
import sys
import threading

from pretend import LIMIT, Systemd, Upstream, chat, health, read_all

RESTARTS = 4
# Of each kind.
CLIENTS = 2
OK = "HTTP/1.1 200"


def ask(address, request, outcomes, over):
    while not over.is_set():
        try:
            with socket.create_connection(address, timeout=LIMIT) as client:
                client.sendall(request)
                answer = read_all(client)
            outcomes.append(answer[:12].decode())
        except OSError as error:
            outcomes.append(repr(error))


def main(binary, example):
    healths, chats, over = [], [], threading.Event()
    with Systemd(binary, example, Upstream()) as systemd:
        systemd.start()
        clients = [
            threading.Thread(target=ask, args=(systemd.address, request, outcomes, over))
            for request, outcomes in [(health(), healths), (chat(stream=False), chats)]
            for _ in range(CLIENTS)
        ]
        try:
            for client in clients:
                client.start()
            for _ in range(RESTARTS):
                systemd.told("WATCHDOG=1")
                systemd.service.terminate()
                systemd.told("STOPPING=1")
                systemd.ended()
                systemd.start()
        finally:
            over.set()
        for client in clients:
            client.join()
        # A draining proxy calls itself unhealthy on a connection that it had taken before, and
        # still serves there.
        for outcomes, right in [(healths, (OK, "HTTP/1.1 503")), (chats, (OK,))]:
            wrong = [one for one in outcomes if one not in right]
            assert not wrong, f"{len(wrong)} of {len(outcomes)} requests failed: {wrong[:5]}"
            assert outcomes.count(OK) > RESTARTS, "hardly a request was served"
        systemd.service.terminate()
        systemd.ended()
    print(
        f"activation: {len(healths)} looks and {len(chats)} chats over {RESTARTS} restarts, "
        "none refused"
    )


main(*sys.argv[1:])
