"""JSON Schema (draft-07) of the YAML files, for editors: the YAML language server reads draft-07 and below.

pydantic writes 2020-12. The differences that occur here: ``$defs`` is ``definitions``, keys beside a
``$ref`` are ignored (so the reference moves into ``allOf``), and ``discriminator`` is OpenAPI's. Titles that
repeat a key are left out, and so are defaults of quantities that are not text (SI floats inside).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from simulator.device import DeviceSpec
from simulator.library import AnyLibrary
from simulator.preset import PresetSpec
from simulator.scenario import Scenario
from simulator.topology import AnyTopology

DRAFT_07 = "http://json-schema.org/draft-07/schema#"


def scenario_schema() -> dict[str, Any]:
    """Schema of a scenario file."""
    return _draft_07(Scenario.model_json_schema(), "clustersim scenario")


def topology_schema() -> dict[str, Any]:
    """Schema of a topology file."""
    return _draft_07(TypeAdapter(AnyTopology).json_schema(), "clustersim topology")


def device_schema() -> dict[str, Any]:
    """Schema of a device profile."""
    return _draft_07(DeviceSpec.model_json_schema(), "clustersim device")


def library_schema() -> dict[str, Any]:
    """Schema of a communication library's profile."""
    return _draft_07(TypeAdapter(AnyLibrary).json_schema(), "clustersim library")


def preset_schema() -> dict[str, Any]:
    """Schema of a shipped model."""
    return _draft_07(PresetSpec.model_json_schema(), "clustersim preset")


SCHEMAS = {
    "scenario": scenario_schema,
    "topology": topology_schema,
    "device": device_schema,
    "library": library_schema,
    "preset": preset_schema,
}


def _draft_07(schema: Mapping[str, Any], title: str) -> dict[str, Any]:
    return {"$schema": DRAFT_07, **_converted(schema), "title": title}


def _converted(node: Any) -> Any:
    if isinstance(node, list):
        return [_converted(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    result = {_KEYS.get(key, key): _converted(value) for key, value in node.items() if not _is_noise(key, value)}
    if "prefixItems" in result:  # a list of fixed length: draft-07 says it with a list of schemas under 'items'
        result["items"] = result.pop("prefixItems")
    if result.get("type") == "string" and isinstance(result.get("default"), float):
        del result["default"]
    if "$ref" in result and isinstance(result.get("default"), dict):  # a whole block, shown by its own fields
        del result["default"]
    if isinstance(result.get("$ref"), str):
        result["$ref"] = result["$ref"].replace("#/$defs/", "#/definitions/")
        if len(result) > 1:
            result["allOf"] = [{"$ref": result.pop("$ref")}]
    return result


_KEYS = {"$defs": "definitions"}


def _is_noise(key: str, value: Any) -> bool:
    openapi = key == "discriminator" and isinstance(value, Mapping) and "propertyName" in value
    return openapi or (key == "title" and isinstance(value, str))
