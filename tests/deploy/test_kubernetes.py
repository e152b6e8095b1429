"""The objects for Kubernetes: right by their schemas and our settings, and an overlay that fits together."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.settings_files import CONTAINER_SECRETS, secret_variables
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.settings import DAY_S, WorkerSettings
from tests.deploy.schemas import Manifest, complaint, manifests

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
MANIFESTS = manifests(FOLDER)

#: A worker exits at most so long after its grace period.
LAST_S = 3

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl command")


def one(name: str) -> Manifest:
    return deepcopy(MANIFESTS[FOLDER / name])


class Pod(NamedTuple):
    """The pod of a Deployment, and its one container."""

    spec: dict[str, Any]
    container: dict[str, Any]
    labels: dict[str, str]

    @classmethod
    def of(cls, deployment: Manifest) -> "Pod":
        template = deployment["spec"]["template"]
        (container,) = template["spec"]["containers"]
        return cls(template["spec"], container, template["metadata"]["labels"])

    @property
    def own_variables(self) -> dict[str, str]:
        return {variable["name"]: variable["value"] for variable in self.container["env"]}

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}


GATEWAY, WORKER = (Pod.of(one(name)) for name in ("base/gateway.yaml", "worker/worker.yaml"))
BOTH = pytest.mark.parametrize("pod", [GATEWAY, WORKER], ids=["gateway", "worker"])


def variables(pod: Pod) -> dict[str, str]:
    """What the container's process is given."""
    shared: dict[str, str] = one("base/settings.yaml")["data"]
    return shared | pod.own_variables


@pytest.mark.long
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_an_object_is_what_its_schema_asks_for(path: Path) -> None:
    assert complaint(MANIFESTS[path]) == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("worker/worker.yaml", "spec.template.spec.shareProcesNamespace", True),
        ("worker/worker.yaml", "spec.template.spec.terminationGracePeriodSeconds", "30s"),
        ("worker/scaledobject.yaml", "spec.pollIntervall", 30),
        ("worker/scaledobject.yaml", "spec.triggers", [{"type": "prometheus", "metadata": {"threshold": 5}}]),
        ("base/podmonitor.yaml", "spec.podMetricsEndpoints", [{"port": 9400}]),
        ("base/podmonitor.yaml", "kind", "PodMonitr"),
    ],
)
def test_what_no_cluster_would_take_is_named(name: str, place: str, value: object) -> None:
    manifest = one(name)
    *outer, last = place.split(".")
    inner = manifest
    for key in outer:
        inner = inner[key]
    inner[last] = value
    assert last in complaint(manifest) or str(value) in complaint(manifest)


@BOTH
def test_a_container_has_no_rights(pod: Pod) -> None:
    assert pod.container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod.spec["securityContext"]["runAsNonRoot"] is True
    assert pod.spec["automountServiceAccountToken"] is False


@BOTH
def test_no_service_becomes_a_setting_by_its_name(pod: Pod) -> None:
    """Of a Service `herd-gateway` Kubernetes would make HERD_GATEWAY_PORT=tcp://..."""
    assert pod.spec["enableServiceLinks"] is False


@BOTH
def test_secrets_come_as_files_that_are_mounted(pod: Pod) -> None:
    (variable,) = variables(pod).keys() & secret_variables(WorkerSettings).keys()
    path = Path(variables(pod)[variable])
    mounts = {Path(mount["mountPath"]): mount["name"] for mount in pod.container["volumeMounts"]}
    (volume,) = (one for one in pod.spec["volumes"] if one["name"] == mounts[path.parent])
    assert volume["secret"]["defaultMode"] == 0o440
    assert path.is_relative_to(CONTAINER_SECRETS)


@pytest.mark.parametrize(
    ("pod", "kind"), [(GATEWAY, GatewaySettings), (WORKER, WorkerSettings)], ids=["gateway", "worker"]
)
def test_the_settings_are_read_as_they_are_meant(
    pod: Pod, kind: type[GatewaySettings | WorkerSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = variables(pod)
    fields = GatewaySettings.model_fields.keys() | WorkerSettings.model_fields.keys()
    known = {f"HERD_{name.upper()}" for name in fields} | secret_variables(WorkerSettings).keys()
    assert {name for name in given if name.startswith("HERD_")} <= known
    url = tmp_path / "url"
    url.write_text("redis://worker:secret@redis:6379/0\n")
    for name, value in (given | {"HERD_REDIS_URL_FILE": str(url)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HERD_REDIS_URL", raising=False)
    settings = kind.read()
    assert settings.redis_url == url.read_text().strip()
    if isinstance(settings, WorkerSettings):
        assert settings.served_model in settings.standing_models
        assert pod.ports["metrics"] == settings.metrics_port
    else:
        assert pod.ports["http"] == settings.gateway_port


def test_a_worker_is_given_time_to_drain() -> None:
    grace_s = float(variables(WORKER).get("HERD_GRACE_S", WorkerSettings.model_fields["grace_s"].default))
    assert WORKER.spec["terminationGracePeriodSeconds"] > grace_s + LAST_S


def test_a_gateway_is_given_time_to_end_its_answers() -> None:
    _, pause_s = GATEWAY.container["lifecycle"]["preStop"]["exec"]["command"]
    grace_s = GatewaySettings.model_fields["gateway_grace_s"].default
    assert GATEWAY.spec["terminationGracePeriodSeconds"] > float(pause_s) + grace_s


def test_a_gateway_takes_jobs_while_no_worker_is_up() -> None:
    """Else nobody could submit the first job, which a worker is started for."""
    probes = [GATEWAY.container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert probes == [{"path": "/health/live", "port": "http"}] * 3


def test_a_worker_is_ready_by_its_own_word_and_alive_also_without_redis() -> None:
    pages = WorkerHealth().pages
    for name, path in (("startup", "ready"), ("readiness", "ready"), ("liveness", "live")):
        asked = WORKER.container[f"{name}Probe"]["httpGet"]
        assert asked == {"path": f"/health/{path}", "port": "metrics"}
        assert asked["path"] in pages
    startup = WORKER.container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= DAY_S


def test_a_worker_that_stands_still_is_started_anew_within_a_minute() -> None:
    stall_s = WorkerSettings.model_fields["stall_s"].default
    live = WORKER.container["livenessProbe"]
    assert stall_s + live["periodSeconds"] * live["failureThreshold"] <= 60


@BOTH
def test_prometheus_asks_every_pod_at_a_port_that_it_has(pod: Pod) -> None:
    spec = one("base/podmonitor.yaml")["spec"]
    (asked,) = spec["podMetricsEndpoints"]
    assert spec["selector"]["matchLabels"].items() <= pod.labels.items()
    assert str(pod.ports[asked["port"]]) == variables(pod)["HERD_METRICS_PORT"]


@pytest.fixture(scope="module")
def built() -> list[Manifest]:
    """The example, as kustomize makes it."""
    command = ["kubectl", "kustomize", str(FOLDER / "overlays/example")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(built: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in built if manifest["kind"] == kind}


def pools(built: list[Manifest]) -> Iterator[tuple[Manifest, Pod]]:
    """Each ScaledObject, and the pod of what it scales."""
    deployments = of_kind(built, "Deployment")
    for scaled in of_kind(built, "ScaledObject").values():
        yield scaled, Pod.of(deployments[scaled["spec"]["scaleTargetRef"]["name"]])


@needs_kubectl
@pytest.mark.long
def test_the_example_is_what_the_schemas_ask_for(built: list[Manifest]) -> None:
    assert [found for manifest in built if (found := complaint(manifest))] == []


@pytest.mark.long
@needs_kubectl
def test_each_pool_is_scaled_by_its_own_model_and_its_own_slots(built: list[Manifest]) -> None:
    models = []
    for scaled, pod in pools(built):
        models.append(pod.own_variables["HERD_SERVED_MODEL_NAME"])
        due, rows = (trigger["metadata"] for trigger in scaled["spec"]["triggers"])
        named = due["query"].split('"')[1::2] + rows["query"].split('"')[1::2]
        assert set(named) == {models[-1]}
        assert rows["threshold"] == pod.own_variables["HERD_SLOTS"]
    assert sorted(models) == ["llama", "tales"]
    settings = of_kind(built, "ConfigMap")["herd-settings"]["data"]
    assert sorted(settings["HERD_MODELS"].split(",")) == sorted(models)


@needs_kubectl
def test_no_pool_takes_anothers_pods_for_its_own(built: list[Manifest]) -> None:
    deployments = of_kind(built, "Deployment")
    selectors = [
        (name, manifest["spec"]["selector"]["matchLabels"])
        for kind in ("Deployment", "PodDisruptionBudget")
        for name, manifest in of_kind(built, kind).items()
    ]
    assert len(selectors) == 2 * len(deployments)
    labels = {name: Pod.of(deployment).labels for name, deployment in deployments.items()}
    for name, selector in selectors:
        assert [other for other in labels if selector.items() <= labels[other].items()] == [name]


@BOTH
def test_a_wrong_setting_is_told_where_the_pod_is(pod: Pod) -> None:
    assert pod.container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@needs_kubectl
def test_an_image_is_one_of_a_version(built: list[Manifest]) -> None:
    (version,) = re.findall(r'image.version="(.+?)"', (FOLDER.parents[1] / "Dockerfile").read_text())
    images = {Pod.of(one).container["image"] for one in of_kind(built, "Deployment").values()}
    assert images == {f"registry.example.com/llama-herd:{version}-{kind}" for kind in ("cpu", "gpu")}


@needs_kubectl
def test_who_may_call_whom(built: list[Manifest]) -> None:
    """Each pod has one policy, whose ports it has; clients come by the Ingress to a Service that is there."""
    policies = of_kind(built, "NetworkPolicy")
    for deployment in of_kind(built, "Deployment").values():
        pod = Pod.of(deployment)
        (policy,) = (
            one["spec"]
            for one in policies.values()
            if one["spec"]["podSelector"]["matchLabels"].items() <= pod.labels.items()
        )
        assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == pod.ports.keys()
    (ingress,) = of_kind(built, "Ingress").values()
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    service = of_kind(built, "Service")[path["backend"]["service"]["name"]]
    assert path["backend"]["service"]["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]
    longest = int(
        ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-body-size"].rstrip("m")
    )
    assert longest << 20 > GatewaySettings.model_fields["gateway_file_bytes"].default


@needs_kubectl
def test_what_a_pod_names_is_there(built: list[Manifest]) -> None:
    claims, settings = of_kind(built, "PersistentVolumeClaim"), of_kind(built, "ConfigMap")
    for deployment in of_kind(built, "Deployment").values():
        pod = Pod.of(deployment)
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        assert {mount["name"] for mount in pod.container["volumeMounts"]} == volumes.keys()
        claimed = [one["persistentVolumeClaim"] for one in volumes.values() if "persistentVolumeClaim" in one]
        assert {claim["claimName"] for claim in claimed} <= claims.keys()
        assert {source["configMapRef"]["name"] for source in pod.container["envFrom"]} <= settings.keys()
