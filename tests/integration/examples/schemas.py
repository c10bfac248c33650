"""Schemas of what Kubernetes itself does not know: LeaderWorkerSet and PodMonitor, as far as the examples use them.

Closed: a field that is not named here is a mistake, or this schema is too small. Source: the definitions of
leaderworkerset.x-k8s.io/v1 and monitoring.coreos.com/v1. Pod templates are checked as Kubernetes' own.
"""

from typing import Any


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object with these fields and no other."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_COUNT = {"type": "integer", "minimum": 0}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_TEMPLATE = {"type": "object", "required": ["spec"]}
_METADATA = closed(("name", "namespace"), name={"type": "string"}, namespace={"type": "string"}, labels=_LABELS)

LEADER_WORKER_SET = closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
    kind={"const": "LeaderWorkerSet"},
    metadata=_METADATA,
    spec=closed(
        ("leaderWorkerTemplate",),
        replicas=_COUNT,
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        rolloutStrategy=closed(
            ("type",),
            type={"enum": ["RollingUpdate"]},
            rollingUpdateConfiguration=closed(maxUnavailable=_COUNT, maxSurge=_COUNT, partition=_COUNT),
        ),
        networkConfig=closed(subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}),
        leaderWorkerTemplate=closed(
            ("workerTemplate",),
            size={"type": "integer", "minimum": 1},
            restartPolicy={"enum": ["RecreateGroupOnPodRestart", "None"]},
            leaderTemplate=_TEMPLATE,
            workerTemplate=_TEMPLATE,
        ),
    ),
)

_SELECTOR = closed(
    matchLabels=_LABELS,
    matchExpressions={
        "type": "array",
        "items": closed(
            ("key", "operator"),
            key={"type": "string"},
            operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            values=_TEXTS,
        ),
    },
)

POD_MONITOR = closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=_METADATA,
    spec=closed(
        ("selector", "podMetricsEndpoints"),
        selector=_SELECTOR,
        podTargetLabels=_TEXTS,
        podMetricsEndpoints={
            "type": "array",
            "minItems": 1,
            "items": closed(
                ("port",),
                port={"type": "string"},
                path={"type": "string", "pattern": "^/"},
                interval={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
            ),
        },
    ),
)

OWN = {"LeaderWorkerSet": LEADER_WORKER_SET, "PodMonitor": POD_MONITOR}
