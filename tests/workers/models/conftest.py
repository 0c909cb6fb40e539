"""A package index in miniature: a tiny fake wheel behind a real HTTP server with ranges, and a pip that is asked."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from workers.models.registry import KnownModel

MEMBER = "tiny_model/tiny.gguf"
GGUF = bytes(range(256)) * 4096
CUT_BYTES = 300_000


def wheel_bytes() -> bytes:
    """A wheel that pip accepts, with the model's file in it, stored uncompressed so that it is a megabyte."""
    info, buffer = "tiny_model-1.0.dist-info", io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {
            MEMBER: GGUF,
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        }.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


@dataclass
class FakeIndex:
    """The server's state. cut: how many answers still break off after CUT_BYTES. ranges: Range headers seen."""

    url: str = ""
    content: bytes = b""
    cut: int = 0
    status: int = 200
    honours_ranges: bool = True
    ranges: list[str | None] = field(default_factory=list)

    @property
    def wheel_url(self) -> str:
        return f"{self.url}/files/tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    state = FakeIndex(content=wheel_bytes())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/simple/"):
                name = state.wheel_url.rpartition("/")[2]
                self.answer(200, f'<a href="{state.wheel_url}">{name}</a>'.encode(), {"Content-Type": "text/html"})
                return
            asked = self.headers.get("Range")
            state.ranges.append(asked)
            if state.status != 200:
                self.answer(state.status, b"no", {})
            elif asked and state.honours_ranges:
                start = int(asked.removeprefix("bytes=").split("-")[0])
                total = len(state.content)
                self.answer(206, state.content[start:], {"Content-Range": f"bytes {start}-{total - 1}/{total}"})
            else:
                self.answer(200, state.content, {})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if state.cut and len(body) > CUT_BYTES:
                state.cut -= 1
                body = body[:CUT_BYTES]
                self.close_connection = True
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{state.url}/simple")
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def tiny() -> KnownModel:
    content = wheel_bytes()
    return KnownModel(
        name="tiny",
        package="tiny-model",
        version="1.0",
        wheel_sha256=hashlib.sha256(content).hexdigest(),
        wheel_bytes=len(content),
        member=MEMBER,
        member_sha256=hashlib.sha256(GGUF).hexdigest(),
        licence="Apache-2.0",
        disk_bytes=1,
    )


@pytest.fixture
def convert() -> Callable[[Path, Path], None]:
    """Stands for the conversion, which needs a real model: the weights are the file itself."""

    def copy_weights(gguf: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")

    return copy_weights
