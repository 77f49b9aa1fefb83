"""The Grafana dashboard and the alert rules use metrics, labels and values that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import ROOT
from tests.service.fixtures import build, talking_to

DASHBOARD = json.loads((ROOT / "service" / "monitoring" / "grafana-dashboard.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "service" / "monitoring" / "alerts.yaml").read_text())[
        "groups"
    ]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
EXPRESSIONS = [
    *(rule["expr"] for rule in RULES),
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(re.sub(r"label_values\((\w+), (\w+)\)", r"count by (\2) (\1)", one["definition"])
      for one in VARIABLES),
]  # fmt: skip
SCRAPED = {"instance", "job"}  # labels that Prometheus adds
METRIC = re.compile(r"\b((?:scanline|process)_\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def samples() -> dict[str, list[dict[str, str]]]:
    """Return the labels of all samples of a server that has answered a request, by name."""
    _, app = build()
    found: dict[str, list[dict[str, str]]] = {}
    with talking_to(app) as client:
        client.post("/v1/samples", json={"n": 1})
        for path in ("/livez", "/readyz", "/metrics"):
            client.get(path)
        text = client.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def selected(expression: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the metrics of an expression, and the labels and values that it selects."""
    for name, selectors in METRIC.findall(expression):
        yield name, re.findall(r'(\w+)[=!]~?"([^"]*)"', selectors)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_metrics_and_labels_exist(
    expression: str, samples: dict[str, list[dict[str, str]]]
) -> None:
    names = [name for name, _ in selected(expression)]
    assert names
    labels = set().union(SCRAPED, *(one for name in names for one in samples.get(name, [])))
    for name, selectors in selected(expression):
        assert name in samples, f"there is no metric {name}"
        for label, value in selectors:
            values = {one.get(label) for one in samples[name]}
            if value != f"${label}":  # a variable of the dashboard
                assert set(value.split("|")) <= values, f"{name} has no {label}={value}"
            elif label not in SCRAPED:
                assert values != {None}, f"{name} has no label {label}"
    for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in grouping.split(",")} <= labels


def kept_labels(expression: str, samples: dict[str, list[dict[str, str]]]) -> set[str]:
    """Return the labels of an expression's result."""
    named = " ".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", expression))
    if re.search(r"\b(?:sum|count|absent)\b", expression):
        return set(re.findall(r"\w+", named))
    own = [name for name, _ in selected(expression.partition(" and ")[0])]  # none of ``up``
    return SCRAPED.union(*(one for name in own for one in samples[name]))


def test_texts_use_labels_of_their_expressions(samples: dict[str, list[dict[str, str]]]) -> None:
    texts = [(rule["expr"], " ".join(rule["annotations"].values())) for rule in RULES]
    for panel in PANELS:
        texts += [(target["expr"], target["legendFormat"]) for target in panel["targets"]]
    for expression, text in texts:
        used = re.findall(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}", text)
        assert set(used) <= kept_labels(expression, samples), text


def test_a_busy_replica_is_not_stuck_because_another_one_is_idle() -> None:
    (expression,) = (rule["expr"] for rule in RULES if rule["alert"] == "ScanlineStuck")
    (running, rate), (matched,) = expression.split(" and "), re.findall(r"and( on|) ", expression)
    assert "scanline_running_images" in running
    assert "scanline_pixels_total" in rate
    assert not matched, "without `on`, all labels must be equal, also `replica`"
    app_state, app = build()
    metrics = app_state.metrics
    with talking_to(app):
        reports = metrics.decoder_metrics()
    metrics.observer("grey").add_replicas(lambda: {"busy": reports, "idle": reports})
    labels: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).add(tuple(sorted(sample.labels.items())))
    assert (("model", "grey"), ("replica", "busy")) in labels["scanline_running_images"]
    assert labels["scanline_running_images"] == labels["scanline_pixels_total"]


def test_panels_do_not_overlap_and_name_the_data_source() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel["title"])
                assert other == panel["title"]
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    sources: list[Any] = [target["datasource"] for panel in PANELS for target in panel["targets"]]
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)


def test_alerts_have_a_summary_and_a_severity() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_alerts_fire_and_stay_silent() -> None:
    path = ROOT / "tests" / "service" / "alerts_test.yaml"
    cases = [
        case
        for group in yaml.safe_load(path.read_text())["tests"]
        for case in group["alert_rule_test"]
    ]
    firing = {case["alertname"] for case in cases if case.get("exp_alerts")}
    assert firing == {rule["alert"] for rule in RULES}
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool, which comes with Prometheus, is not installed")
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
