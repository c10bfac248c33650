"""What goes into a pipeline: alerts that a metrics server reads, the CI action, the rollout gate."""

import json
import os
import subprocess
from pathlib import Path

import fastjsonschema
import promql_parser
import pytest
import yaml

from kvfence.audit.alerts import to_rule_file
from kvfence.audit.catalogue import catalogue

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples/kubernetes/audit-job.yaml"
ACTION = ROOT / ".github/actions/kvfence-audit/action.yml"
SUBSET = json.loads((Path(__file__).parent / "data/kubernetes-subset.json").read_text("utf-8"))
"""The Kubernetes 1.37 schemas of a Job and a ConfigMap, cut down to what the example uses; unknown keys are refused."""

ALERTS = [(entry.rule, alert) for entry in catalogue() for alert in entry.rule.alerts]


def read_yaml(text: str) -> list[dict]:  # type: ignore[type-arg]
    """Read every document of a YAML text."""
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize(("rule", "alert"), ALERTS, ids=lambda each: getattr(each, "name", ""))
def test_an_alert_is_promql(rule: object, alert: object) -> None:
    """Each expression is read by a PromQL parser."""
    promql_parser.parse(alert.expression)  # type: ignore[attr-defined]


def test_the_alert_file_names_its_rules() -> None:
    """The file is YAML, of one group, with unique names, severities and rules that explain themselves."""
    (document,) = read_yaml(to_rule_file(catalogue()))
    (group,) = document["groups"]
    assert len(group["rules"]) == len(ALERTS) >= 6
    assert len({each["alert"] for each in group["rules"]}) == len(ALERTS)
    ids = {entry.rule.id for entry in catalogue()}
    for each in group["rules"]:
        assert each["labels"]["rule"] in ids
        promql_parser.parse(each["expr"])


def test_one_alert_is_the_fleet_wide_preflight() -> None:
    """Pool against context by two gauges of the same labels."""
    assert "sglang:max_total_num_tokens <= sglang:context_len" in [alert.expression for _, alert in ALERTS]


def test_the_rollout_gate_keeps_the_schema() -> None:
    """Every document of the example is valid, key by key."""
    documents = read_yaml(JOB.read_text("utf-8"))
    assert [each["kind"] for each in documents] == ["ConfigMap", "Job"]
    for document in documents:
        fastjsonschema.compile(SUBSET[document["kind"]])(document)


def test_the_schema_finds_a_wrong_key() -> None:
    """A key that Kubernetes does not know is refused."""
    job = read_yaml(JOB.read_text("utf-8"))[1]
    job["spec"]["template"]["spec"]["restartpolicy"] = "Never"
    with pytest.raises(fastjsonschema.JsonSchemaException):
        fastjsonschema.compile(SUBSET["Job"])(job)


def test_the_gate_never_retries_and_ends() -> None:
    """A gate that retries until something passes is no gate."""
    job = read_yaml(JOB.read_text("utf-8"))[1]["spec"]
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert job["activeDeadlineSeconds"] <= 600


def action() -> dict:  # type: ignore[type-arg]
    """The composite action."""
    return read_yaml(ACTION.read_text("utf-8"))[0]


def test_the_action_reads_no_input_as_code() -> None:
    """Inputs reach the script as variables: an expression in a script would run whatever an input holds."""
    for step in action()["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"


@pytest.mark.parametrize(
    ("code", "unknown_fails", "expected"),
    [(0, "true", 0), (1, "true", 1), (3, "true", 3), (3, "false", 0), (2, "false", 2)],
)
def test_the_action_ends_as_the_audit_does(tmp_path: Path, code: int, unknown_fails: str, expected: int) -> None:
    """UNKNOWN stops the job unless the caller says otherwise; a source cannot become an option."""
    stand_in = tmp_path / "kvfence"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\nexit {code}\n')
    stand_in.chmod(0o755)
    script = next(step["run"] for step in action()["runs"]["steps"] if step.get("id") == "audit")
    variables = {
        "SOURCES": "prefill.log=prefill --json", "ADVERTISED": "1000", "FAIL_ON": "high", "IGNORES": "", "BASELINE": "",
        "UNKNOWN_FAILS": unknown_fails, "SARIF": "out.sarif", "GITHUB_OUTPUT": str(tmp_path / "output"),
    }  # fmt: skip
    environment = {**os.environ, **variables, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, check=False, timeout=30)
    assert done.returncode == expected
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    first = (tmp_path / "calls").read_text().splitlines()[0]
    assert first.endswith("--format sarif --output out.sarif -- prefill.log=prefill --json")
