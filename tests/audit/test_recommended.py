"""A pair that follows the post-mortem's five recommendations, as its own files say: what is left to tell is little."""

import json
from pathlib import Path

import pytest

from kvfence.cli.main import main

LOG = (
    "[2026-11-01 00:00:00 TP0] Tree cache initialized: source=default impl=ChunkCache hybrid_swa=False "
    "hybrid_ssm=False hierarchical=False streaming_wrapped=False\n"
    "[2026-11-01 00:00:00 TP0] max_total_num_tokens=300032, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=48, context_len=131072, available_gpu_mem=9.99 GB\n"
)
LAUNCH = (
    "export SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES=64\n"
    "export SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT=90\n"
    "export MC_TRANSFER_TIMEOUT=30\n"
    "python -m sglang.launch_server --model-path /models/m --disaggregation-mode {} --context-length 131072\n"
)
NGINX = (
    "events {}\nhttp { upstream pd { server 10.0.0.1:8000; } server { location / { proxy_pass http://pd; "
    "proxy_ignore_client_abort on; proxy_next_upstream off; } } }\n"
)
IGNORES = """
[[ignore]]
rule = "KVF0019"
reason = "the engine writes no line for a checksum that was compared"
until = 2999-01-01
[[ignore]]
rule = "KVF0040"
reason = "a prompt is sent through the pair every minute"
until = 2999-01-01
"""


def server_info(role: str) -> dict[str, object]:
    """What SGLang 0.5.23 says of itself, as far as it matters."""
    return {
        "status": "ready", "version": "0.5.23", "disaggregation_mode": role, "model_path": "/models/m",
        "mem_fraction_static": 0.85, "chunked_prefill_size": 8192, "host": "10.0.0.1",
        "disaggregation_bootstrap_port": 8998, "context_length": 131072, "max_req_input_len": 131066, "page_size": 64,
        "dtype": "bfloat16", "kv_cache_dtype": "auto", "tp_size": 8, "pp_size": 1, "dp_size": 1,
        "speculative_algorithm": None, "enable_hierarchical_cache": False, "enable_lmcache": False,
        "disaggregation_transfer_backend": "mooncake", "disaggregation_enable_kv_checksum": True, "kv_canary": "none",
        "kv_canary_real_data": "none", "allow_auto_truncate": False, "disable_radix_cache": True, "quantization": "fp8",
        "internal_states": [{"memory_usage": {"token_capacity": 300032}}],
    }  # fmt: skip


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Log, launch script and server info of both roles, and the router's configuration."""
    for role in ("prefill", "decode"):
        (tmp_path / f"{role}.log").write_text(LOG)
        (tmp_path / f"{role}.sh").write_text(LAUNCH.format(role))
        (tmp_path / f"{role}.json").write_text(json.dumps(server_info(role)))
    (tmp_path / "nginx.conf").write_text(NGINX)
    (tmp_path / "ignores.toml").write_text(IGNORES)
    named = [f"{tmp_path}/{role}.{kind}" for role in ("prefill", "decode") for kind in ("sh", "json")]
    return [*named, f"{tmp_path}/prefill.log=prefill", f"{tmp_path}/decode.log=decode", f"{tmp_path}/nginx.conf"]


def kvfence(*arguments: str) -> int:
    """Run the command line in this process and give its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_what_is_left_is_what_no_source_can_show(sources: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing fails; the checksum at work and the health check's path stay unknown, and so does the whole."""
    assert kvfence("audit", "check", *sources, "--advertised", "131072", "--json") == 3
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert not [each for each in findings if each["verdict"] == "fail"]
    assert {each["rule"] for each in findings if each["verdict"] == "unknown"} == {"KVF0019", "KVF0040"}


def test_with_both_accepted_it_is_clean(sources: list[str], tmp_path: Path) -> None:
    """Two reasons with an end make exit code 0."""
    arguments = (*sources, "--advertised", "131072", "--ignores", str(tmp_path / "ignores.toml"))
    assert kvfence("audit", "check", *arguments) == 0


def test_one_role_with_less_memory_is_found(sources: list[str], tmp_path: Path) -> None:
    """The same pair with a prefill whose pool shrank fails, whatever else is right."""
    info = server_info("prefill")
    info |= {"max_req_input_len": 99_994, "internal_states": [{"memory_usage": {"token_capacity": 100_000}}]}
    (tmp_path / "prefill.json").write_text(json.dumps(info))
    arguments = (*sources, "--advertised", "131072", "--ignores", str(tmp_path / "ignores.toml"))
    assert kvfence("audit", "check", *arguments) == 1
