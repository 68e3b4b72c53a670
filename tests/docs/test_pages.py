"""Generated pages are current, examples in pages run, and every internal link leads somewhere."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import unsmooth
from tests.docs.test_readme import check_printed
from tests.support.hub import use_local_hub
from tools import architecture, generate, host_pages
from tools.markdown import DOCS, NOTE
from unsmooth.report.pictures import PICTURES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "results").glob("*.md")])
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TRACED = "architecture.md"  # holds a trace of real calls, which differs between versions of torch and timm


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return generate.pages()


def test_generated_pages_are_current(generated: dict[str, str]) -> None:
    """`make docs` writes them."""
    outdated = [
        path
        for path, text in generated.items()
        if path != TRACED and not ((DOCS / path).is_file() and (DOCS / path).read_text(encoding="utf-8") == text)
    ]
    assert not outdated


def test_no_generated_page_is_left_over(generated: dict[str, str]) -> None:
    assert generate.stale(set(generated)) == []


def test_every_remedy_and_vital_has_a_page() -> None:
    assert {path.stem for path in (DOCS / "remedies").glob("*.md")} == {*unsmooth.list_remedies(), "index"}
    assert {path.stem for path in (DOCS / "vitals").glob("*.md")} == {*unsmooth.list_vitals(), "index"}


def test_the_record_of_hosts_is_complete() -> None:
    """`make hosts` writes it."""
    hosts = host_pages.read_hosts()
    assert {host["name"]: host["spec"] for host in hosts} == host_pages.HOSTS
    assert all(set(host["remedies"]) == set(unsmooth.list_remedies()) for host in hosts)


def test_every_room_is_described() -> None:
    assert set(architecture.rooms()) == set(architecture.ROOMS)
    assert set(architecture.ROOMS) == {path.parent.name for path in (ROOT / "unsmooth").glob("*/__init__.py")}


def test_the_walks_name_functions_that_exist() -> None:
    """`make docs` traces them anew."""
    text = (DOCS / TRACED).read_text(encoding="utf-8")
    names = re.findall(r"^ *([a-z_.]+)\.((?:[A-Z]\w+\.)?[a-z_]+)(?: ×\d+)?  ", text, flags=re.MULTILINE)
    assert len(names) > 30
    for module, qualified in names:
        value = importlib.import_module(f"unsmooth.{module}")
        for part in qualified.split("."):
            value = getattr(value, part)


def test_schemas_describe_recorded_results(generated: dict[str, str]) -> None:
    for path, text in generated.items():
        if path.startswith("schemas/") and path.endswith(".json"):
            assert {"format", "kind"} <= set(json.loads(text)["required"])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_internal_links(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", _without_code(path.read_text(encoding="utf-8"))):
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        if page.parent == DOCS and page.name in ("contributing.md", "changelog.md"):
            page = ROOT / page.name.upper().replace(".MD", ".md")  # pages that the site takes from the root
        assert page.exists(), f"{path.name} links to {target}"
        if anchor and page.parent.name != "api":
            assert anchor in _anchors(page.read_text(encoding="utf-8")), f"{path.name} links to {target}"


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`(?!\])", "", text, flags=re.DOTALL)


def _anchors(text: str) -> set[str]:
    headings = [
        re.sub(r"[^\w\s-]", "", title).strip().lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return {re.sub(r"[-\s]+", "-", title) for title in headings} | set(re.findall(r'id="([^"]+)"', text))


def test_contributing_names_files_that_exist() -> None:
    names = re.findall(r"`((?:unsmooth|tests|tools|benchmarks|results|docs|notebooks)/[\w./]+)`", CONTRIBUTING)
    placeholders = ("KEY", "NAME", "PAPER", "ROOM")
    paths = [name for name in names if not any(word in name for word in placeholders)]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_contributing_describes_every_room() -> None:
    assert re.findall(r"^\| `(\w+)/` \|", CONTRIBUTING, flags=re.MULTILINE) == list(architecture.rooms())


def test_generated_pages_say_so(generated: dict[str, str]) -> None:
    partly = {"cost.md", "guides/energy.md", "guides/scale.md"}  # tables between markers, in pages written by hand
    pages = {path for path in generated if path.endswith(".md")}
    assert {path for path in pages if NOTE not in generated[path]} == partly & pages
    assert all("<!-- " in generated[path] for path in partly & pages)


def test_the_guide_has_the_readings_of_all_pictures() -> None:
    guide = (DOCS / "guides" / "diagnose.md").read_text(encoding="utf-8")
    for picture in PICTURES.values():
        assert f"| {picture.title} | {picture.shows} | {picture.reading} |" in guide


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "get-started.md",
        "guides/diagnose.md",
        "guides/evaluation.md",
        "guides/hosts.md",
        "guides/hub.md",
        "guides/monitor.md",
        "guides/notebooks.md",
        "guides/prescribe.md",
        "guides/remedies.md",
    ],
)
def test_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block of text has the last lines that the block of code before it prints."""
    monkeypatch.chdir(tmp_path)
    use_local_hub(monkeypatch, tmp_path / "cache")  # the guide to the hub pushes and loads
    blocks = re.findall(r"```(python|text)\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "python" in dict(blocks)
    names: dict[str, Any] = {}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, name, "exec"), names)
        else:
            lines = capsys.readouterr().out.splitlines(keepends=True)
            check_printed("".join(lines[-block.count("\n") :]), block)


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In strict mode: a broken link or a page outside of the navigation is an error."""
    mkdocs_commands = pytest.importorskip("mkdocs.commands.build")
    from mkdocs.config import load_config

    monkeypatch.chdir(ROOT)
    mkdocs_commands.build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True))
    text = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    outside = re.findall(r'(?:src|href)="(https?://[^"]+)"', text)
    assert [url for url in outside if "squidfunk.github.io" not in url] == []
