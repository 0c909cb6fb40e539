"""Serves HTTP from the process that answers it, on the event loop that it is started on.

Ray Serve has a proxy for this, a process that hands every piece of every answer on through Ray: with it, a token passed
through four threads of two processes on its way to a socket. Replicas of an endpoint share a port, if there are
several; the kernel hands out the connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import uvicorn
from starlette.types import ASGIApp

BACKLOG = 2048
KEEP_ALIVE_S = 90
"""For which a connection may rest between two requests."""


class HttpServer:
    """Listens from the start on; answers once the application's own start is over."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        """Needs a running event loop. Raises OSError where the address cannot be had."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # a request has a line in Kadence's own log
        self._socket = _listen(host, port)
        config = uvicorn.Config(
            app,
            lifespan="on",
            ws="none",
            access_log=False,
            log_config=None,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = uvicorn.Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]))

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def is_running(self) -> bool:
        return not self._task.done()

    async def stop(self, within_s: float) -> None:
        """Take no more connections and let the answers that run end; what takes longer is cut off."""
        self._server.should_exit = True
        self._server.config.timeout_graceful_shutdown = max(int(within_s), 1)
        await asyncio.gather(self._task, return_exceptions=True)


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # For the next replica, while the one that it replaces ends its answers.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
