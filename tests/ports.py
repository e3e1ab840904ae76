"""Ports of this machine that stay free until they are used."""

from __future__ import annotations

import random
import socket

BELOW = 30_000  # from there on systems hand ports out themselves: any rank could be given a port that was just found free


def free_port() -> int:
    """A port on loopback, among those that the system gives to nobody who does not ask for it."""
    while True:
        port = random.randrange(10_000, BELOW)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
