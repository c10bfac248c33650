"""Kubernetes objects, Helm's output, Dynamo and llm-d resources, Compose files: containers' commands and environments.

A role comes from a command or from what a resource itself declares about a component, never from its name.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from kvfence.evidence import commands
from kvfence.evidence.defaults import is_fork
from kvfence.evidence.facts import Origin, SourceFacts
from kvfence.evidence.lines import quote
from kvfence.evidence.readings import Found, Notebook, Place
from kvfence.evidence.yaml_lines import line_of, load_yaml

OBJECTS_MAX = 20_000
DEPTH_MAX = 60
_HOLDERS = ("containers", "mainContainer", "extraPodSpec", "container")
_SKIPPED = ("initContainers", "status", "managedFields")
_UNNAMED = ("spec", "template", "metadata")
_SUB_COMPONENT_ROLES = {"prefill": "prefill", "decode": "decode"}
_IMAGES = {"lmsysorg/sglang": "sglang", "vllm/vllm-openai": "vllm", "huggingface/text-generation-inference": "tgi"}


class Container(Struct, frozen=True):
    """One container as written: where it stands, its words, its environment."""

    path: str
    name: str
    words: tuple[str, ...]
    environment: dict[str, str]
    image: str
    role: str | None
    probes: tuple[str, ...]
    is_env_whole: bool
    line: int | None


def is_manifest(document: object) -> bool:
    """Whether a document is a Kubernetes object, a list of them, or a Compose file."""
    if isinstance(document, list):
        return bool(document) and is_manifest(document[0])
    return isinstance(document, Mapping) and (
        ("kind" in document and ("apiVersion" in document or "items" in document)) or _is_compose(document)
    )


def _is_compose(document: Mapping[str, object]) -> bool:
    services = document.get("services")
    return isinstance(services, Mapping) and any(
        isinstance(each, Mapping) and ("image" in each or "command" in each) for each in services.values()
    )


def read_yaml(name: str, text: str) -> list[SourceFacts] | None:
    """The facts of a YAML stream; None where it holds no manifest."""
    documents, problems = load_yaml(text)
    envoy = [each for each in documents if isinstance(each, Mapping) and "static_resources" in each]
    if envoy:
        from kvfence.evidence.routers import read_envoy

        return read_envoy(name, envoy)
    manifests = [each for each in documents if is_manifest(each)]
    if not manifests:
        return [SourceFacts(name, "manifest", problems=tuple(problems))] if problems else None
    found = read_objects(name, manifests)
    return [_with_problems(each, problems) for each in found]


def _with_problems(facts: SourceFacts, problems: list[str]) -> SourceFacts:
    import msgspec

    return msgspec.structs.replace(facts, problems=(*facts.problems, *problems)) if problems else facts


def read_objects(name: str, documents: Iterable[object]) -> list[SourceFacts]:
    """The facts of each container that launches an engine or a router."""
    from kvfence.evidence.gather import facts_of

    found: list[SourceFacts] = []
    for document in documents:
        for container in containers(document):
            book = Notebook(name, Place(container.path))
            if read_container(book, container):
                found.append(facts_of(book, "manifest"))
    return found or [SourceFacts(name, "manifest")]


def containers(document: object) -> Iterator[Container]:
    """Every container in a document, wherever it stands (custom resources have their own shapes)."""
    if isinstance(document, Mapping) and _is_compose(document):
        services = document["services"]
        for key, service in services.items() if isinstance(services, Mapping) else ():
            if isinstance(service, Mapping):
                yield _container(service, f"services/{key}", None)
        return
    yield from _Walk().containers(document, "", None, 0)


class _Walk:
    """A walk over a document that visits no node twice: an alias is the same node, and a bomb of them is small."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def containers(self, node: object, path: str, role: str | None, depth: int) -> Iterator[Container]:
        """The containers below a node, with the path and the role declared above them."""
        if depth > DEPTH_MAX or not isinstance(node, (list, Mapping)) or id(node) in self._seen:
            return
        self._seen.add(id(node))
        if isinstance(node, list):
            for at, item in enumerate(node[:OBJECTS_MAX]):
                yield from self.containers(item, f"{path}[{at}]", role, depth + 1)
            return
        path, role = _path(node, path), _declared_role(node) or role
        for key, value in node.items():
            if key in _HOLDERS and isinstance(value, (list, Mapping)):
                for at, each in enumerate(value if isinstance(value, list) else [value]):
                    if isinstance(each, Mapping) and ("command" in each or "args" in each or "image" in each):
                        yield _container(each, f"{path}/{each.get('name', at)}", role)
                    else:
                        yield from self.containers(each, path, role, depth + 1)
            elif key not in _SKIPPED:
                here = f"{path}/{key}" if isinstance(value, Mapping) and key not in _UNNAMED else path
                yield from self.containers(value, here, role, depth + 1)


def _path(node: Mapping[str, object], path: str) -> str:
    kind, metadata = node.get("kind"), node.get("metadata")
    if isinstance(kind, str) and isinstance(metadata, Mapping) and metadata.get("name"):
        return f"{kind}/{metadata['name']}"
    return path


def _declared_role(node: Mapping[str, object]) -> str | None:
    """Dynamo's ``subComponentType`` and llm-d's ``llm-d.ai/role`` label are declarations, not names."""
    declared = node.get("subComponentType")
    if declared is None:
        labels = node.get("labels")
        metadata = node.get("metadata")
        if labels is None and isinstance(metadata, Mapping):
            labels = metadata.get("labels")
        template = node.get("template")
        if labels is None and isinstance(template, Mapping) and isinstance(template.get("metadata"), Mapping):
            labels = template["metadata"].get("labels")
        declared = labels.get("llm-d.ai/role") if isinstance(labels, Mapping) else None
    return _SUB_COMPONENT_ROLES.get(str(declared).lower())


def _container(node: Mapping[str, object], path: str, role: str | None) -> Container:
    words = tuple(word for key in ("entrypoint", "command", "args") for word in _texts(node.get(key)))
    environment, is_whole = _environment(node)
    probes = tuple(
        probe for key in ("readinessProbe", "livenessProbe", "healthcheck") for probe in _probe(node.get(key))
    )
    return Container(
        path=path, name=str(node.get("name", "")), words=words, environment=environment, role=role, probes=probes,
        image=str(node.get("image", "")), is_env_whole=is_whole, line=line_of(node),
    )  # fmt: skip


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return commands.split(value)
    return [str(item) for item in value] if isinstance(value, list) else []


def _environment(node: Mapping[str, object]) -> tuple[dict[str, str], bool]:
    """Variables with a literal value; whether they are all of them (none comes from a map or a secret)."""
    env, found = node.get("env", node.get("environment")), dict[str, str]()
    whole = "envFrom" not in node and "envFromSecret" not in node and "env_file" not in node
    if isinstance(env, Mapping):
        found = {str(key): str(value) for key, value in env.items() if value is not None}
    for item in env if isinstance(env, list) else []:
        if isinstance(item, Mapping) and "name" in item:
            if "value" in item:
                found[str(item["name"])] = str(item["value"])
            else:
                found[str(item["name"])] = "$from"
        elif isinstance(item, str):
            key, _, value = item.partition("=")
            found[key] = value
    return found, whole


def _probe(value: object) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    http, command = value.get("httpGet"), value.get("exec") or value.get("test")
    if isinstance(http, Mapping):
        yield f"httpGet {http.get('path', '/')}"
    elif "tcpSocket" in value:
        yield "tcpSocket"
    elif command:
        words = command.get("command") if isinstance(command, Mapping) else command
        yield f"exec {' '.join(_texts(words))[:120]}"


def read_container(book: Notebook, container: Container) -> bool:
    """Write down what a container says; False where it launches no engine we know."""
    from kvfence.evidence.routers import is_router, read_router_words

    command = commands.parse_words(container.words, container.environment)
    if is_router(container.words):
        _add(book, container, read_router_words(container.words), " ".join(container.words))
        return True
    image_engine, version = _image(container.image)
    engine = command.engine or image_engine
    if not engine:
        return False
    book.saw(engine)
    if not command.engine and engine:
        command = commands.parse_command(
            f"{commands.launcher(engine)} " + " ".join(map(commands.quoted, container.words)), container.environment
        )
    _add(book, container, commands.read_command(command), commands.shown(command, container.words))
    if version:
        _add(book, container, [Found("version", version, 3)], f"image: {container.image}")
    if container.role:
        _add(book, container, [Found("role", container.role, 4)], f"declared role: {container.role}")
    for probe in container.probes[:1]:
        _add(book, container, [Found("health_check", probe)], probe)
    if not container.is_env_whole:
        book.problems.append(f"{container.path}: part of its environment stands elsewhere (envFrom)")
    return True


def _add(book: Notebook, container: Container, found: Iterable[Found], text: str) -> None:
    for item in found:
        words = str(item.value)
        at = text.find(words) if words not in ("True", "False") else -1
        book.add(item, Origin(book.source, container.line, quote(text, max(0, at)), None, container.path))


def _image(image: str) -> tuple[str, str | None]:
    """The engine and version that a public image's name and tag state; other images state neither."""
    repository, _, tag = image.partition("@")[0].rpartition(":")
    for known, engine in _IMAGES.items():
        if repository.endswith(known):
            version = tag.removeprefix("v").split("-")[0]
            return engine, version if is_fork(version) is False and version.count(".") >= 2 else None
    return "", None
