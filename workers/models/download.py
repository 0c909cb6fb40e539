"""One file over HTTP into a .part file that a later call continues."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx
from tenacity import RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential
from tenacity import Retrying as Attempts

from workers.models.registry import ModelError

ATTEMPTS = 6
TIMEOUT = httpx.Timeout(30.0, connect=10.0)
# The variables by which pip, requests, curl and OpenSSL are told of a certificate bundle, in the order we ask them.
CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")

OnBytes = Callable[[int], None]
"""Called with the number of bytes there are now."""


def download(url: str, part: Path, size: int, on_bytes: OnBytes = lambda _: None, first_wait_s: float = 0.5) -> None:
    """Complete `part` to `size` bytes from `url` (http, https or file), continuing what is there.

    A broken connection is taken up again where it broke, ATTEMPTS times. Raises ModelError when that does not help.
    """
    if urlsplit(url).scheme == "file":
        shutil.copyfile(url2pathname(urlsplit(url).path), part)
        return on_bytes(part.stat().st_size)
    attempts = Attempts(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_random_exponential(multiplier=first_wait_s, max=8),
        retry=retry_if_exception(_may_pass),
        retry_error_callback=_give_up,
    )
    try:
        with httpx.Client(verify=tls_context(), timeout=TIMEOUT, follow_redirects=True) as client:
            attempts(_continue, client, url, part, size, on_bytes)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # The host alone: the URL may carry credentials.
        reason = f"HTTP {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else str(error)
        raise ModelError(f"{urlsplit(url).hostname} answered: {reason}") from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tls_context() -> ssl.SSLContext:
    """Trust what pip trusts, where an environment variable says so; otherwise the bundle that httpx carries."""
    for variable in CA_VARIABLES:
        bundle = os.environ.get(variable)
        if bundle and Path(bundle).is_file():
            return ssl.create_default_context(cafile=bundle)
    return httpx.create_ssl_context()


def _continue(client: httpx.Client, url: str, part: Path, size: int, on_bytes: OnBytes) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have > size:
        part.unlink()
        have = 0
    if have == size:
        return on_bytes(have)
    # identity: a compressed transfer cannot be continued by byte offset.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as answer:
        answer.raise_for_status()
        # A server without ranges answers 200 and sends everything: begin anew.
        starts = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
        resumes = answer.status_code == 206 and starts is not None and int(starts[1]) == have
        with part.open("ab" if resumes else "wb") as file:
            for (
                block
            ) in answer.iter_raw():  # as it comes: a block size would lose what is gathered when the line breaks
                file.write(block)
                on_bytes(file.tell())
    if part.stat().st_size < size:
        raise httpx.RemoteProtocolError("the file ended early")


def _may_pass(error: BaseException) -> bool:
    """Whether trying again may help: a broken connection, an overloaded server."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 425, 429) or error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)


def _give_up(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    raise ModelError(f"download broke off {ATTEMPTS} times ({error}); run the command again to continue it") from error
