"""Examples, options, links and figures of the documentation are correct."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from typer.main import get_command

from scanline.kernels.constants import ATTENTION_KINDS, FEATURE_MAPS
from scanline.model.checkpoint import SHIPPED_WEIGHTS, load_checkpoint
from scanline.service.cli.main import app
from tests.server_processes import free_port, wait_ready

ROOT = Path(__file__).parent.parent
GUIDES = ("README.md", "docs/api.md", "docs/operations.md", "docs/training.md", "docs/figures.md")
PAGES = {name: (ROOT / name).read_text() for name in GUIDES}
README = PAGES["README.md"]
FOLDERS = ("", "docs", "weights", "tests/device")
DOCUMENTS = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
ADDRESS = "http://127.0.0.1:8000"


def blocks(language: str, heading: str, page: str = README) -> list[str]:
    """Return the code blocks of a language in the section below a heading."""
    section = page.split(f"\n{heading}\n")[1]
    section = re.split(r"^#{2,3} ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "scanline.service", "serve", "--port", str(port)]
    with subprocess.Popen([*command, "--log-level", "warning"]) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            wait_ready(address, process)
            yield address
        finally:
            process.terminate()


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing")
def test_curl(server: str, tmp_path: Path) -> None:
    (short,) = blocks("sh", "## Over HTTP")
    run(["bash", "-euc", short.replace(ADDRESS, server)], tmp_path)
    (script,) = blocks("sh", "## Examples", PAGES["docs/api.md"])
    output = run(["bash", "-euc", script.replace(ADDRESS, server)], tmp_path)
    assert size(tmp_path / "samples.png") == (4 * 30 - 2, 4 * 30 - 2)
    assert size(tmp_path / "trucks.png") == (2 * 34 - 2, 2 * 34 - 2)
    assert size(tmp_path / "digit.png") == (28, 28)
    with zipfile.ZipFile(tmp_path / "completions.zip") as archive:
        assert len(archive.namelist()) == 4
    assert (
        output.count('"seed"') == 8 + 2
    )  # eight sevens, and a stream with one image in two events
    assert "event: completed" in output
    assert '"object":"list"' in output


def test_python(server: str, tmp_path: Path) -> None:
    (openai_example,) = blocks("python", "### With OpenAI's client")
    run([sys.executable, "-c", openai_example.replace(ADDRESS, server)], tmp_path)
    assert size(tmp_path / "openai-1.png") == (280, 280)
    httpx_example, background = blocks("python", "### From Python", PAGES["docs/api.md"])
    (stream,) = blocks("python", "## Streams", PAGES["docs/api.md"])
    (concurrent,) = blocks("python", "## Concurrent requests", PAGES["docs/api.md"])
    run([sys.executable, "-c", httpx_example.replace(ADDRESS, server)], tmp_path)
    assert size(tmp_path / "four-ways.png") == (2 * 30 - 2, 2 * 30 - 2)
    state = run([sys.executable, "-c", background.replace(ADDRESS, server)], tmp_path)
    assert state.startswith("finished {")
    lines = run([sys.executable, "-c", stream.replace(ADDRESS, server)], tmp_path).splitlines()
    assert lines[0].startswith("started")
    assert lines[-1].startswith("completed")
    run([sys.executable, "-c", concurrent.replace(ADDRESS, server)], tmp_path)
    assert size(tmp_path / "digit-9.png") == (28, 28)


@pytest.mark.slow
def test_without_a_server(tmp_path: Path) -> None:
    script, _ = blocks("sh", "## Without a server")
    Image.new("L", (28, 28)).save(tmp_path / "digit.png")
    for line in script.strip().splitlines():
        words = shlex.split(line)
        assert words[0] == ".venv/bin/scanline"
        run([sys.executable, "-m", "scanline.service", *words[1:]], tmp_path)
    assert size(tmp_path / "samples.png") == ((8 * 30 - 2) * 4,) * 2
    assert size(tmp_path / "completions.png") == ((3 * 30 - 2) * 4,) * 2


def test_in_python_without_a_server(tmp_path: Path) -> None:
    (notebook,) = blocks("python", "## Without a server")
    bits = run([sys.executable, "-c", notebook], tmp_path)
    assert len(bits.strip(" []\n").split()) == 8
    assert size(tmp_path / "threes.png") == (8 * 28, 2 * 28)


def test_hash_of_64_digits_matches_the_readme() -> None:
    _, script = blocks("sh", "## Without a server")
    command, comment = script.strip().splitlines()
    words = shlex.split(command)
    assert words[0] == ".venv/bin/python"
    assert run([sys.executable, *words[1:]], ROOT).strip() == comment.removeprefix("# ")


def commands() -> list[list[str]]:
    """Return every `scanline` command of the documentation, also of running text, as words."""
    text = re.sub(r"\\\n\s*", " ", "\n".join(page.read_text() for page in DOCUMENTS))
    found = re.findall(r"^(?:\.venv/bin/)?scanline (.*?)(?:\s+#.*)?$", text, re.MULTILINE)
    found += re.findall(r"`(?:\.venv/bin/)?scanline ([^`]+)`", text)
    return [shlex.split(line) for line in dict.fromkeys(found)]


def test_options_of_commands_exist() -> None:
    group = get_command(app)
    found = commands()
    assert len(found) > 50
    for line in found:
        command, words = group.commands[line[0]], line[1:]  # type: ignore[attr-defined]
        if hasattr(command, "commands") and words:
            name, *words = words
            command = command.commands[name.replace("EXPERIMENT", "figure1")]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, " ".join(line)


def test_deeper_networks_have_more_layers_than_their_start() -> None:
    given = (dict(itertools.pairwise(words)) for words in commands() if "--layers" in words)
    deeper = [options for options in given if options["--from"] != "…"]
    assert deeper
    for options in deeper:
        config = load_checkpoint(ROOT / options["--from"]).model.config
        assert int(options["--layers"]) > config.n_layers


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_figures_of_the_shipped_weights(name: str) -> None:
    facts = load_checkpoint(SHIPPED_WEIGHTS / f"{name}.safetensors").facts
    plain, labelled = (
        "{bits_per_dim:.4f} ± {standard_error:.4f}".format_map(facts[key])
        for key in ("test", "test_with_label")
    )
    card, overview = ((ROOT / "weights" / page).read_text() for page in (f"{name}.md", "README.md"))
    figures = PAGES["docs/figures.md"]
    assert f"| `{name}` | {plain} | {labelled} |" in figures
    assert re.search(rf"\| {plain.split()[0]}( ± [\d.]+)? ¹ \|", README)
    assert f"**{plain} bits/dim**" in card
    assert f"{labelled} with the true label" in card
    shipped = [line for line in overview.splitlines() if "**shipped**" in line]
    assert sum(line.endswith(f"| {plain.split()[0]} |") for line in shipped) == 1
    guidance, top_p = (f"{facts['defaults'][key]:g}" for key in ("guidance", "top_p"))
    judged = {"mnist": figures, "cifar10": card}[name]
    (share,) = re.findall(
        rf"\| \*\*{guidance}\*\* \| \*\*{top_p}\*\* \| \*\*([\d.]+) %\*\*", judged
    )
    if name == "cifar10":
        said = f"guidance {guidance} at `top_p` {top_p}. With them {float(share):.0f} % of 1,000"
        assert said in figures
    else:
        assert f"| {share} % |" in README


def test_all_settings_are_documented() -> None:
    from scanline.service.settings import Settings

    for name in Settings.model_fields:
        assert f"`{name.upper()}`" in PAGES["docs/operations.md"], name


def test_all_kinds_of_attention_and_feature_maps_are_documented() -> None:
    for name in (*ATTENTION_KINDS, *FEATURE_MAPS):
        assert f"`{name}`" in PAGES["docs/training.md"], name


def test_all_error_codes_and_metrics_are_documented() -> None:
    files = [*(ROOT / "service").rglob("*.py"), ROOT / "model" / "sampling.py"]
    source = "".join(path.read_text() for path in files)
    codes = set(re.findall(r'\bcode="(\w+)"', source))
    codes |= set(re.findall(r'\(\d{3}, (?:f?"[^"]*"|message), "(\w+)"\)', source))
    codes |= set(re.findall(r'SamplingError\([^()]*"(\w+)",?\s*\)', source))
    codes |= {
        code for pair in re.findall(r'code = "(\w+)" if \w+ else "(\w+)"', source) for code in pair
    }
    metrics = set(re.findall(r'"(scanline_[a-z_]+)"', source))
    assert len(codes) > 28
    assert len(metrics) > 10
    assert {name for name in codes if f"`{name}`" not in PAGES["docs/api.md"]} == set()
    assert {name for name in metrics if f"`{name}`" not in PAGES["docs/operations.md"]} == set()


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = "\n".join(page.read_text() for page in DOCUMENTS)
    targets = set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE))
    assert targets >= {"serve", "test", "test-rest", "lint"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    DOCUMENTS,
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_named_files_and_headings_exist(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"`((?:service|model|kernels|tests|weights)/[\w./-]*)`", text))
    assert {name for name in named if not (ROOT / name).exists()} <= {"weights/paper.safetensors"}
    assert named or page.name not in ("architecture.md", "CONTRIBUTING.md")
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert heading in anchors, target
