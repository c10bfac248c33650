"""The Kubernetes examples: valid, closed, guarded on both roles, and started with flags that this release has."""

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema
import kubernetes_validate
import pytest
import yaml

from kvfence.audit.deployment import assemble
from kvfence.audit.runner import run
from kvfence.cli.compose_engine import require_engine_settings
from kvfence.cli.load_settings import load_settings
from kvfence.cli.settings_flags import FLAGS
from kvfence.core.verdict import Verdict
from kvfence.evidence.gather import gather
from tests.house.source import ROOT
from tests.integration.examples.schemas import OWN

FOLDER = ROOT / "examples" / "kubernetes"
VERSION = "1.34"
ENGINES = ("sglang", "vllm")
TOPOLOGIES = {"1p1d": (1, 1), "2p4d": (2, 4)}
PORTS = {"sglang": 30000, "vllm": 8000}
WORKERS = {"key": "app.kubernetes.io/component", "operator": "In", "values": ["prefill", "decode"]}

Document = dict[str, Any]


@cache
def documents(path: Path) -> tuple[Document, ...]:
    """Read a file's documents."""
    return tuple(yaml.safe_load_all(path.read_text("utf-8")))


def topology(engine: str, name: str) -> dict[str, Document]:
    """Give the documents of a topology and what it shares, by kind and name."""
    every = (*documents(FOLDER / engine / "common.yaml"), *documents(FOLDER / engine / f"{name}.yaml"))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in every}


def problems(document: Document) -> list[str]:
    """Say what a cluster would refuse."""
    schema = OWN.get(document["kind"])
    if schema is None:
        return _kubernetes_problems(document)
    try:
        fastjsonschema.compile(schema)(document)
    except fastjsonschema.JsonSchemaException as error:
        return [error.message]
    if document["kind"] != "LeaderWorkerSet":
        return []
    template = document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": template["spec"]}
    return _kubernetes_problems(pod)


def _kubernetes_problems(document: Document) -> list[str]:
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message]
    return []


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yaml")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_document_is_valid(path: Path) -> None:
    """By Kubernetes' own schema, fields that it does not know refused; by ours where it has none."""
    found = {f"{each['kind']}/{each['metadata']['name']}": problems(each) for each in documents(path)}
    assert found
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("LeaderWorkerSet/prefill", ("spec", "leaderWorkerTemplate", "sizes"), 1),
        ("LeaderWorkerSet/prefill", ("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "container"), []),
        ("PodMonitor/kvfence-pair", ("spec", "podMetricsEndpoints", 0, "intervall"), "15s"),
        ("Deployment/gateway", ("spec", "replica"), 2),
        ("NetworkPolicy/workers", ("spec", "ingres"), []),
    ],
)
def test_a_field_that_does_not_exist_is_found(name: str, place: tuple[str | int, ...], value: object) -> None:
    """In each kind: the check can fail."""
    document = copy.deepcopy(topology("sglang", "1p1d")[name])
    at: Any = document
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    assert problems(document)


def engine_of(document: Document) -> Document:
    """Give the engine's container of a set of workers."""
    containers: list[Document] = document["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    return containers[0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_guard_enforces_on_both_roles_with_one_key(engine: str, name: str) -> None:
    """From the same Secret, read from a file."""
    parts = topology(engine, name)
    for role in ("prefill", "decode"):
        container = engine_of(parts[f"LeaderWorkerSet/{role}"])
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert (env["KVFENCE_GUARD"], env["KVFENCE_GUARD_KEY_FILE"]) == ("enforce", "/run/secrets/kvfence/key")
        assert not {"SGLANG_PLUGINS", "VLLM_PLUGINS", "KVFENCE_GUARD_INSECURE"} & set(env)
        spec = parts[f"LeaderWorkerSet/{role}"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
        assert {"name": "key", "secret": {"secretName": "kvfence-guard", "defaultMode": 0o400}} in spec["volumes"]
        assert spec["enableServiceLinks"] is False
    assert parts["Secret/kvfence-guard"]["stringData"] == {"key": ""}, "an empty key is refused at the start"


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_vllm_loads_the_connector_by_its_module(name: str) -> None:
    """The class keeps the name that vLLM knows."""
    parts = topology("vllm", name)
    for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        arguments = engine_of(parts[f"LeaderWorkerSet/{role}"])["args"]
        config = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
        expected = {"kv_connector": "NixlConnector", "kv_connector_module_path": "kvfence.guard.vllm"}
        assert config == {**expected, "kv_role": kv_role}


def urls(engine: str, name: str) -> dict[str, list[str]]:
    """Give the workers' addresses as their sets make them."""
    counts = dict(zip(("prefill", "decode"), TOPOLOGIES[name], strict=True))
    return {
        role: [f"http://{role}-{number}.{role}.serving.svc:{PORTS[engine]}" for number in range(count)]
        for role, count in counts.items()
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_gateway_starts_with_flags_that_there_are(engine: str, name: str) -> None:
    """And asks every worker of the sets; so do both steps of the gate."""
    parts, expected = topology(engine, name), urls(engine, name)
    for role, addresses in expected.items():
        assert parts[f"LeaderWorkerSet/{role}"]["spec"]["replicas"] == len(addresses)
    container = parts["Deployment/gateway"]["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["kvfence", "serve"]
    settings = load_settings(flags=flags_of(container["args"])).settings
    require_engine_settings(settings, [])
    assert (settings.engine.kind, settings.server.api_keys) == (engine, "/run/secrets/kvfence/api-keys")
    assert {"prefill": [*settings.engine.prefill], "decode": [*settings.engine.decode]} == expected
    gate = parts["Job/kvfence-gate"]["spec"]["template"]["spec"]
    assert gate["initContainers"][0]["args"] == [*expected["prefill"], *expected["decode"]]
    asked = gate["containers"][0]["args"]
    assert [argument for argument in asked if argument.startswith("http")] == gate["initContainers"][0]["args"]


def flags_of(arguments: list[str]) -> dict[str, object]:
    """Read flags into settings by dotted key, as the command line does."""
    keys = {flag: key for key, flag in FLAGS.items()}
    given: dict[str, Any] = {}
    for flag, value in zip(arguments[::2], arguments[1::2], strict=True):
        if isinstance(given.get(keys[flag]), list):
            given[keys[flag]].append(value)
        else:
            given[keys[flag]] = [value] if flag in ("--prefill", "--decode") else value
    return given


@pytest.mark.parametrize("engine", ENGINES)
def test_the_side_channels_are_open_to_workers_alone(engine: str) -> None:
    """Every other peer comes to the HTTP port and no further; workers reach nothing but each other and names."""
    policy = topology(engine, "1p1d")["NetworkPolicy/workers"]["spec"]
    assert policy["podSelector"] == {"matchExpressions": [WORKERS]}
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    among, others = policy["ingress"]
    assert among == {"from": [{"podSelector": {"matchExpressions": [WORKERS]}}]}
    assert others["ports"] == [{"protocol": "TCP", "port": PORTS[engine]}]
    peers, names = policy["egress"]
    assert peers == {"to": [{"podSelector": {"matchExpressions": [WORKERS]}}]}
    assert {port["port"] for port in names["ports"]} == {53}


@pytest.mark.parametrize("engine", ENGINES)
def test_prometheus_reads_a_port_that_every_pod_has(engine: str) -> None:
    """Of workers and gateway alike, by its name."""
    parts = topology(engine, "2p4d")
    monitor = parts["PodMonitor/kvfence-pair"]["spec"]
    containers = [engine_of(parts[f"LeaderWorkerSet/{role}"]) for role in ("prefill", "decode")]
    containers += parts["Deployment/gateway"]["spec"]["template"]["spec"]["containers"]
    for container in containers:
        names = {port["name"] for port in container["ports"]}
        assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= names
    assert "--enable-metrics" in engine_of(parts["LeaderWorkerSet/prefill"])["args"] or engine == "vllm"


@pytest.mark.parametrize("engine", ENGINES)
def test_two_topologies_differ_in_numbers_alone(engine: str) -> None:
    """What is mended in one is mended in the other."""
    texts = []
    for name in TOPOLOGIES:
        text = (FOLDER / engine / f"{name}.yaml").read_text("utf-8")
        text = re.sub(r"(?m)^ *- --(prefill|decode)\n *- http\S+\n|^ *- http\S+\n", "", text)
        texts.append(re.sub(r"\d+ (prefill|decode) workers?|replicas: \d|\d prefill and \d decode workers?", "", text))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_our_own_audit_finds_nothing_grave_in_them(engine: str, name: str) -> None:
    """No rule at or above high fails on the manifests as they stand."""
    files = [str(FOLDER / engine / each) for each in (f"{name}.yaml", "common.yaml")]
    audit = run(assemble(gather(files)))
    assert {finding.rule for finding in audit.findings if finding.verdict is Verdict.FAIL} == {"KVF0040"}, (
        "readiness, low"
    )
