"""watchdog.py BINARY ENV_EXAMPLE: the watchdog is fed by a self-check that has passed, and by
nothing else."""

import ctypes
import socket
import struct
import sys

from pretend import Systemd, Upstream

# From asm-generic/socket.h; the module does not have them.
SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27


def cut_off(listener):
    """Makes the kernel drop whatever comes for the socket that systemd shares with the service: it
    has its descriptors and threads, and cannot be reached."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def main(binary, example):
    with Systemd(binary, example, Upstream()) as systemd:
        systemd.start()
        systemd.told("WATCHDOG=1")
        cut_off(systemd.listener)
        # A check that had its connection before may still pass; after one has failed, none can.
        systemd.logged("self_check passed=false", 1)
        systemd.told_so_far()
        systemd.logged("self_check passed=false", 2)
        told = systemd.told_so_far()
        assert not told, f"told without a proof: {told}"
        systemd.listener.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        systemd.told("WATCHDOG=1")
        systemd.service.terminate()
        systemd.ended()
    print("watchdog: not fed while the service cannot be reached, and fed again afterwards")


main(*sys.argv[1:])
