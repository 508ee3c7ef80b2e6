"""Reduces a CustomResourceDefinition to what validation needs of it, the schema of one version:

python deploy/kubernetes/schemas/reduce.py VERSION < CRD.yaml > KIND.GROUP_VERSION.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml

_LEFT_OUT = frozenset({"default", "description", "example", "x-kubernetes-validations"})


def reduced(definition: Any, version: str) -> Any:
    """Returns the JSON schema without descriptions and without the keywords that only an API server
    uses."""
    [schema] = [
        item["schema"]["openAPIV3Schema"]
        for item in definition["spec"]["versions"]
        if item["name"] == version
    ]
    return _reduced(schema)


def _reduced(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_reduced(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        # The names of properties may be anything, those of keywords may not.
        name: {key: _reduced(item) for key, item in value.items()}
        if name == "properties"
        else _reduced(value)
        for name, value in schema.items()
        if name not in _LEFT_OUT
    }


if __name__ == "__main__":
    json.dump(reduced(yaml.safe_load(sys.stdin), sys.argv[1]), sys.stdout, separators=(",", ":"))
    print()
