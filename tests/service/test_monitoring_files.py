"""The Grafana dashboard and the alert rules use metrics, labels and values that exist."""

from __future__ import annotations

import json
import re
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
        text = client.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def selected(expression: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the metrics of an expression, and the labels and values that it selects."""
    for name, selectors in METRIC.findall(expression):
        yield name, re.findall(r'(\w+)=~?"([^"]*)"', selectors)


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


def test_texts_use_labels_of_their_expressions() -> None:
    texts = [(rule["expr"], " ".join(rule["annotations"].values())) for rule in RULES]
    for panel in PANELS:
        texts += [(target["expr"], target["legendFormat"]) for target in panel["targets"]]
    for expression, text in texts:
        kept = " ".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", expression))
        used = re.findall(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}", text)
        assert set(used) <= set(re.findall(r"\w+", kept)), text


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
