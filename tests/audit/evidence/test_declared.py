"""Commands, manifests, routers and deployment files."""

import json
from pathlib import Path

import pytest

from kvfence.core.errors import EvidenceError
from kvfence.evidence.document import facts_document
from kvfence.evidence.gather import Spec, gather, read_text
from tests.audit.evidence.records import document_of

SCRIPT = """#!/bin/bash
export SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES=1024
SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE=1 python -m sglang.launch_server --model-path m \\
  --context-length 32768 --tp 8 --page-size=64 --enable-dp-attention \\
  --disaggregation-mode decode --disaggregation-transfer-backend mooncake --kv-canary log
"""


def test_a_launch_script() -> None:
    """A command over several lines, its environment and an export before it are one process."""
    document = document_of(SCRIPT)
    expected = {
        "engine": "sglang", "role": "decode", "context_len": 32768, "tp_size": 8, "page_size": 64, "dp_attention": True,
        "transfer_backend": "mooncake", "kv_canary_requested": "log", "batch_indices_max": 1024,
        "deferred_release": True, "kind": "command", "pool_tokens": None,
    }  # fmt: skip
    assert {key: document[key] for key in expected} == expected


def test_two_commands_are_two_processes() -> None:
    """Two servers started by one script are not mixed."""
    form = "CUDA_VISIBLE_DEVICES={} vllm serve m --max-model-len {} --kv-transfer-config '{}' &\n"
    text = form.format(0, 8192, '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}') + form.format(
        1, 4096, '{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_load_failure_policy":"recompute"}'
    )
    first, second = document_of(text)["parts"]
    assert (first["role"], first["context_len"], first["failure_policy"]) == ("prefill", 8192, None)
    assert (second["role"], second["context_len"], second["failure_policy"]) == ("decode", 4096, "recompute")


def test_a_variable_is_no_value() -> None:
    """What a shell would fill in is unknown, and then no default is claimed either."""
    document = document_of("vllm serve $MODEL --max-model-len $LEN --block-size 16\n")
    assert (document["context_len"], document["page_size"], document["role"]) == (None, 16, None)


def test_a_whole_command_without_disaggregation_is_a_single_node() -> None:
    """The documented default counts where the whole command is there, and says so."""
    document = document_of("python3 -m sglang.launch_server --model-path m --port 30000\n")
    assert document["role"] == "single"
    assert "disaggregation-mode" in document["sources"]["role"]["default_of"]


MANIFEST = """apiVersion: apps/v1
kind: Deployment
metadata: {name: decode-pool}
spec:
  template:
    spec:
      containers:
      - name: engine
        image: lmsysorg/sglang:v0.5.19-cu129
        command: [python3, -m, sglang.launch_server]
        args: [--model-path=/m, --context-length=1048576, --disaggregation-mode=prefill, --api-key, sk-verysecret123]
        env:
        - {name: SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE, value: "true"}
        - {name: MC_TRANSFER_TIMEOUT, value: "60"}
        readinessProbe: {httpGet: {path: /health, port: 30000}}
---
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  services:
    Worker:
      subComponentType: decode
      extraPodSpec:
        mainContainer:
          image: my/img:1
          command: [/bin/sh, -c]
          args: ["python3 -m dynamo.vllm --model m --max-model-len 8192"]
"""


def test_manifests_of_kubernetes_and_dynamo() -> None:
    """Containers' commands, environments, probes and images become facts; a pod's name gives no role."""
    first, second = document_of(MANIFEST)["parts"]
    expected = {
        "engine": "sglang", "version": "0.5.19", "role": "prefill", "context_len": 1048576, "deferred_release": True,
        "transfer_timeout_s": 60.0, "health_check": "httpGet /health", "api_key_set": True,
    }  # fmt: skip
    assert {key: first[key] for key in expected} == expected
    assert (second["engine"], second["role"], second["context_len"]) == ("vllm", "decode", 8192)
    assert "verysecret" not in json.dumps(first)
    assert first["sources"]["version"]["line"] == 8


def test_a_list_as_kubectl_prints_it() -> None:
    """``kubectl get pods -o json``: a List of objects."""
    container = {"name": "c", "image": "vllm/vllm-openai:v0.11.0", "args": ["--model", "m", "--max-model-len", "4096"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    document = document_of(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}))
    assert (document["engine"], document["version"], document["context_len"]) == ("vllm", "0.11.0", 4096)


def test_nginx_and_envoy() -> None:
    """What load balancers do to a request whose client left, and when they retry."""
    nginx = "upstream r { server a:1; }\nserver { location / { proxy_pass http://r; proxy_read_timeout 30s; } }\n"
    document = document_of(nginx)
    found = (document["engine"], document["router_timeout_s"], document["aborts_on_disconnect"], document["retries"])
    assert found == ("nginx", 30.0, True, False)
    assert (
        document_of(nginx.replace("proxy_read", "proxy_ignore_client_abort on; proxy_read"))["aborts_on_disconnect"]
        is False
    )
    envoy = (
        "static_resources:\n  listeners:\n  - route_config:\n      virtual_hosts:\n      - routes:\n"
        "        - match: {prefix: /}\n          route: {cluster: x, timeout: 20s, retry_policy: {retry_on: 5xx}}\n"
    )
    document = document_of(envoy)
    assert (document["engine"], document["router_timeout_s"], document["retries"]) == ("envoy", 20.0, True)


def test_the_sglang_router() -> None:
    """The router's command says whether it retries."""
    text = "python -m sglang_router.launch_router --pd-disaggregation --prefill http://a:1 8998 --decode http://b:1"
    assert document_of(text)["retries"] is True
    assert document_of(text + " --disable-retries")["retries"] is False


def test_a_deployment_file(tmp_path: Path) -> None:
    """A deployment file names sources and roles; paths are its own directory's; names are not roles."""
    (tmp_path / "a.log").write_text("[2026-01-01 00:00:00 TP0] max_total_num_tokens=10, x=1, context_len=1024, y=1\n")
    (tmp_path / "fleet.txt").write_text('[[source]]\npath = "a.log"\nrole = "decode"\n')
    (facts,) = gather([str(tmp_path / "fleet.txt")])
    assert facts.role.value == "decode"
    (tmp_path / "fleet.txt").write_text('[[source]]\npath = "a.log"\nrole = "encode"\n')
    with pytest.raises(EvidenceError, match="write one of prefill"):
        gather([str(tmp_path / "fleet.txt")])


def test_a_rotated_set_is_one_source(tmp_path: Path) -> None:
    """The files of one rotated log are read oldest first, as one source; each quote names its own file."""
    start = "[2026-01-01 00:00:00 TP0] max_total_num_tokens={}, x=1, context_len=1024, y=1\n"
    (tmp_path / "e.log.2").write_text(start.format(10))
    (tmp_path / "e.log.1").write_text(start.format(20))
    (tmp_path / "e.log").write_text("KV checksum mismatch req=a bootstrap_room=1 expected=0x1 got=0x2\n")
    (source,) = facts_document(gather([str(tmp_path / "e.log*")]))["sources"]
    assert (source["pool_tokens"], source["event"]) == (20, "kv_checksum_mismatch")
    assert source["sources"]["pool_tokens"]["where"].endswith("e.log.1:1")


def test_the_callers_role_holds_and_a_contradiction_is_said(tmp_path: Path) -> None:
    """The role that the caller gives is taken; what the text says else is a remark."""
    (tmp_path / "x").write_text(
        "[2026-01-01 00:00:00] server_args=ServerArgs(disaggregation_mode='prefill', page_size=1)\n"
    )
    (facts,) = gather([Spec(str(tmp_path / "x"), role="decode")])
    assert facts.role.value == "decode"
    assert facts.problems == ("the caller says decode, the text says prefill",)


def test_a_source_that_is_not_there_says_what_to_name() -> None:
    """A missing file is an error that says what a SOURCE can be."""
    with pytest.raises(EvidenceError, match="name a log"):
        gather(["/nonexistent/engine.log"])


def test_answers_of_endpoints_saved_to_files() -> None:
    """A saved /server_info gives the computed pool, not the flag; /v1/models the advertised context."""
    info = {
        "version": "0.5.19", "context_length": 8192, "max_total_tokens": 99, "max_req_input_len": 1018,
        "internal_states": [{"memory_usage": {"token_capacity": 1024}}], "disaggregation_mode": "prefill",
    }  # fmt: skip
    document = document_of(json.dumps(info, indent=1))
    found = (document["pool_tokens"], document["context_len"], document["effective_input_limit"], document["role"])
    assert found == (1024, 8192, 1018, "prefill")
    models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "sglang", "max_model_len": 8192}]}
    document = document_of(json.dumps(models))
    assert (document["advertised_context"], document["context_len"]) == (8192, None)


def test_a_prometheus_answer() -> None:
    """An instant vector is one set of facts for each instance and rank."""
    row = {"__name__": "sglang:max_total_num_tokens", "instance": "a:1", "engine_type": "prefill", "dp_rank": "0"}
    result = [
        {"metric": row, "value": [1, "1024"]},
        {"metric": {**row, "__name__": "sglang:context_len"}, "value": [1, "8192"]},
        {"metric": {**row, "instance": "b:1", "engine_type": "decode"}, "value": [1, "1536"]},
    ]
    first, second = read_text(
        "p", json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
    )
    assert (first.pool_tokens.value, first.context_len.value, first.role.value) == (1024, 8192, "prefill")
    assert (second.pool_tokens.value, second.role.value) == (1536, "decode")
