"""What a long piece of work tells of itself."""


class Report:
    """What is told while it runs; every method may be overridden."""

    def stage(self, name: str, total: int) -> None:
        """Another part of the work begins, of that many steps (answers, tokens, optimiser steps)."""

    def advance(self, by: int, text: str = "") -> None:
        """Some of it is done."""
