"""A network of one machine: its loopback, and a name server that knows what a test tells it."""

import fcntl
import socket
import struct
import threading

A, AAAA = 1, 28
NO_ERROR, NO_SUCH_NAME = 0x8180, 0x8183


def raise_loopback():
    """`ip link set lo up`, without iproute2."""
    SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        name, flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", name, flags | IFF_UP))


class NameServer(threading.Thread):
    """Answers each query with what `look_up` says."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 53))

    def look_up(self, name, kind):
        """The flags and the IPv4 addresses of the answer; None for no answer at all."""
        raise NotImplementedError

    def run(self):
        while True:
            query, client = self.socket.recvfrom(512)
            if (answer := self.answer(query)) is not None:
                self.socket.sendto(answer, client)

    def answer(self, query):
        labels, end = [], 12
        while query[end]:
            labels.append(query[end + 1 : end + 1 + query[end]].decode())
            end += 1 + query[end]
        kind = struct.unpack_from(">H", query, end + 1)[0]
        found = self.look_up(".".join(labels), kind)
        if found is None:
            return None
        flags, addresses = found
        # A pointer to the name in the question, type A, class IN, a second, four bytes.
        record = struct.pack(">HHHIH", 0xC00C, A, 1, 1, 4)
        records = [record + socket.inet_aton(address) for address in addresses]
        head = query[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
        return head + query[12 : end + 5] + b"".join(records)
