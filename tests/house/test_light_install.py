"""A light install works: no torch, numpy, pyzmq or web framework is needed to import it or to ask for help."""

import json
import subprocess
import sys
import textwrap

import pytest

from kvfence.cli.main import VERBS

HEAVY = (
    "torch", "transformers", "numpy", "zmq", "starlette", "uvicorn", "sse_starlette", "httpx", "httpx_sse", "xxhash",
    "structlog", "psutil", "rapidfuzz", "gguf", "safetensors", "tokenizers", "openai", "llguidance",
    "ibis", "duckdb", "pyarrow", "pandas", "scipy", "opentelemetry", "z3",
)  # fmt: skip
# Packages that every install can import whole, from the floor up.
LIGHT_PACKAGES = (
    "kvfence.core", "kvfence.protocol", "kvfence.trace", "kvfence.driver", "kvfence.sim", "kvfence.evidence",
    "kvfence.audit", "kvfence.cli",
)  # fmt: skip
# Modules of those packages that belong to an extra all the same.
NOT_LIGHT = (
    "kvfence.driver.numpy_ledger",
    "kvfence.incident.deployment",
    "kvfence.incident.named_pages",
    "kvfence.incident.production",
    "kvfence.sim.records",
    "kvfence.cli.compose",
    "kvfence.cli.compose_engine",
    "kvfence.cli.demo",
    "kvfence.cli.incident_stage",
    "kvfence.cli.range_stage",
    "kvfence.cli.serve_engine",
)

BLOCK = f"""
import sys
HEAVY = {HEAVY!r}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def run_kvfence_light(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where no heavy module can be imported."""
    return run_python(BLOCK + "from kvfence.cli.main import main\nmain(sys.argv[1:])", *arguments)


def test_light_modules_import_nothing_heavy() -> None:
    """Importing every module of the light floors leaves no heavy module behind, and needs none."""
    code = f"""
    import importlib, json, pkgutil, sys
    names = []
    for package in {LIGHT_PACKAGES!r}:
        try:
            module = importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name == package:
                continue  # not there yet
            raise
        names += [found.name for found in pkgutil.walk_packages(module.__path__, package + ".")]
    for name in names:
        if name not in {NOT_LIGHT!r}:
            importlib.import_module(name)
    print(json.dumps({{"names": names, "heavy": sorted(set(sys.modules) & set({HEAVY!r}))}}))
    """
    result = run_python(BLOCK + textwrap.dedent(code))
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert "kvfence.cli.main" in seen["names"]
    assert seen["heavy"] == []


def test_the_block_blocks() -> None:
    """The hook that stands for a light install does hide an installed module."""
    result = run_python(BLOCK + "import numpy")
    assert result.returncode == 1
    assert "No module named 'numpy'" in result.stderr


def test_help_lists_every_verb() -> None:
    """`kvfence --help` names every verb in a light install."""
    result = run_kvfence_light("--help")
    assert result.returncode == 0, result.stderr
    assert [verb.name for verb in VERBS if verb.name not in result.stdout] == []


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_help_of_every_verb(verb: str) -> None:
    """`kvfence VERB --help` works for every verb in a light install."""
    result = run_kvfence_light(verb, "--help")
    assert result.returncode == 0, result.stderr
    assert f"kvfence {verb}" in result.stdout


def test_config_show_needs_no_extra() -> None:
    """A light install can show its settings."""
    result = run_kvfence_light("config", "show", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)[0]["key"] == "model.path"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("model", "fetch"), "kvfence model needs the extra 'serve': pip install '.[serve]'"),
        (("prove", "invariant"), "kvfence prove invariant needs the extra 'prove': pip install '.[prove]'"),
        (("prove", "invariant", "--each"), "kvfence prove invariant needs the extra 'prove': pip install '.[prove]'"),
    ],
)
def test_a_verb_without_its_extra_says_how_to_install_it(arguments: tuple[str, ...], says: str) -> None:
    """Without its extra a verb exits 2 with the line that mends it, and prints no traceback."""
    result = run_kvfence_light(*arguments)
    assert result.returncode == 2, result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
