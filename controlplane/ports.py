"""Whether a port can be listened on: asked before anything is started."""

from __future__ import annotations

import socket


def bind_problem(host: str, port: int) -> str | None:
    """Why nothing can listen on `port` of `host`, in the system's words; None where something can."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # As a server itself binds: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return None
