"""The documentation is true where a machine can tell: settings, commands, links, modules, examples."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from controlplane.policy import parse_policy
from controlplane.settings import ENV_PREFIX, FIELDS, Settings
from workers.cli import app
from workers.lazy_group import load_command

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in
         (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}  # fmt: skip
CODE = ("controlplane", "workers", "kernels", "dashboard", "migrations")
NOT_OURS = {".git", ".venv", ".venv-clients", ".kadence", "artifacts", "build", "dist", "__pycache__"}

FENCE = re.compile(r"^([ ]*)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(kadence\s[^`]+)`")
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
PICTURE = re.compile(r'\bsrc(?:set)?="([^"]+)"')
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\[|\.\.\.|…|\b[A-Z]{3,}\b")
SETTING_ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (?:`(--[\w-]+)`)? ?\| `?([^|`]*)`? \| ", re.MULTILINE)


def fenced(page: str, language: str) -> list[str]:
    return [body for _, spoken, body in FENCE.findall(PAGES[page]) if spoken == language]


def commands(page: str) -> Iterator[str]:
    """Every `kadence ...` in the page: lines of unmarked code blocks, and words set as code."""
    for block in fenced(page, ""):
        for line in re.sub(r"\n {4,}", " ", block).splitlines():
            if line.startswith("kadence "):
                yield line.partition(" #")[0].strip()
    yield from (" ".join(words.split()) for words in INLINE.findall(FENCE.sub("", PAGES[page])))


COMMANDS = sorted({(page, command) for page in PAGES for command in commands(page)})


def resolve(words: list[str]) -> Iterator[tuple[Any, list[str]]]:
    """The command behind `words`, and its arguments; several where a word says `fetch|list`."""
    command, rest = typer.main.get_command(app), list(words)
    while rest and not rest[0].startswith("-") and (known := getattr(command, "commands", None)):
        names, rest = rest[0].split("|"), rest[1:]
        unknown = [name for name in names if name not in known]
        if unknown == ["COMMAND"]:
            return
        assert not unknown, f"no such command: {unknown}"
        lazy = getattr(command, "lazy_commands", {})
        found = [load_command(name, lazy) if name in lazy else known[name] for name in names]
        if len(found) > 1:
            yield from ((each, rest) for each in found)
            return
        command = found[0]
    yield command, rest


def slugs(page: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(FENCE.sub("", PAGES[page]))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def files() -> Iterator[Path]:
    for folder, names, found in os.walk(ROOT):
        names[:] = [n for n in names if n not in NOT_OURS and not n.endswith((".egg-info", "_cache"))]
        yield from (Path(folder) / name for name in found)


@pytest.fixture(scope="module")
def setting_rows() -> dict[str, tuple[str, str, str]]:
    """Setting -> (variable, flag or "", default) as the configuration page has them."""
    return {key: (variable, flag, default) for key, variable, flag, default in
            SETTING_ROW.findall(PAGES["docs/configuration.md"])}  # fmt: skip


def test_the_configuration_page_has_every_setting_and_no_other(setting_rows) -> None:
    assert sorted(setting_rows) == sorted(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_settings_variable_flag_and_default_are_as_documented(setting_rows, name) -> None:
    variable, flag, default = setting_rows[name]
    ((up, _),) = resolve(["up"])
    flags = {option for parameter in up.params for option in parameter.opts}
    own = f"--{name.replace('_', '-')}"
    assert variable == ENV_PREFIX + name.upper()
    assert flag == (own if own in flags else "")
    assert default == (str(Settings.model_fields[name].default) or "sqlite:///<home>/kadence.db")


def test_every_variable_in_the_code_is_on_the_configuration_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    used = set(re.findall(rf"\b{ENV_PREFIX}[A-Z_]*[A-Z]\b", text))
    assert {name for name in used if name not in PAGES["docs/configuration.md"]} == set()


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_in_the_pages_exists_with_these_flags(page, command) -> None:
    for found, arguments in resolve(shlex.split(command)[1:]):
        options = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
        used = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(arguments)))
        assert used <= options | {"--help", "-h", "--version"}
        if not PLACEHOLDER.search(command) and not hasattr(found, "commands") and arguments:
            found.make_context(found.name, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_a_make_target_in_the_pages_exists(page) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)make (\w+)", PAGES[page], re.MULTILINE))
    assert {target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_links_lead_somewhere(page) -> None:
    for target in LINK.findall(FENCE.sub("", PAGES[page])):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), target
        if anchor:
            assert anchor in slugs(there.resolve().relative_to(ROOT).as_posix()), target


def test_every_picture_in_the_pages_is_there_and_none_is_left_over() -> None:
    shown = {((ROOT / page).parent / path).resolve() for page in PAGES for path in PICTURE.findall(PAGES[page])}
    assert shown == set((ROOT / "docs" / "images").glob("*"))


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), ["README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        for target in LINK.findall(PAGES[page]):
            path = os.path.relpath(os.path.normpath((ROOT / page).parent / target.partition("#")[0]), ROOT)
            if path in PAGES and path not in reached:
                waiting.append(path)
    assert set(PAGES) - reached == set()


def test_the_architecture_page_has_a_line_for_every_module_and_no_other() -> None:
    listed = re.findall(r"^\| `([\w/]+\.py)` \| \S", PAGES["docs/architecture.md"], re.MULTILINE)
    there = [
        path.relative_to(ROOT).as_posix()
        for folder in CODE
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert sorted(listed) == sorted(there)


def test_the_readmes_policy_is_a_good_one() -> None:
    (policy,) = fenced("README.md", "yaml")
    assert not parse_policy(policy).warnings


@pytest.mark.parametrize("page", PAGES)
def test_python_examples_compile(page) -> None:
    for example in fenced(page, "python"):
        compile(example, page, "exec")


def test_no_file_names_the_host_of_a_package_registry() -> None:
    # In parts, so that this file does not name them either.
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org"),
             ("npmjs", "org"), ("anaconda", "org"), ("crates", "io"), ("rubygems", "org"))]  # fmt: skip
    naming = [
        str(path.relative_to(ROOT))
        for path in files()
        if path.stat().st_size < 5_000_000 and any(host.encode() in path.read_bytes() for host in hosts)
    ]
    assert naming == []
