from __future__ import annotations

import orjson
import pytest

from fastovms.api.served import ModelState
from tests.fakes import model_info

NAME = "org/fake 1"
AVAILABLE = {
    NAME: {
        "model_version_status": [
            {
                "version": "1",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": "OK"},
            }
        ]
    }
}


@pytest.fixture
def api(make_api):
    return make_api(model=model_info(name=NAME))


async def ask(api, method: str, path: str, **sender):
    response = await api.call(method, path, **sender)
    return response.status, orjson.loads(response.body) if response.body else None


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/config"), ("POST", "/v1/config/reload")])
async def test_status_of_the_configuration(api, method, path):
    assert await ask(api, method, path, is_admin=True) == (200, AVAILABLE)
    api.backend.failure = "inference hung"
    status, body = await ask(api, method, path, is_admin=True)
    [version] = body[NAME]["model_version_status"]
    assert (status, version["state"]) == (200, "END")
    assert version["status"]["error_message"] == "inference hung"


class Holder:
    """Stands for the pool of models that are loaded on demand, or not."""

    def __init__(self, loads_on_demand: bool) -> None:
        self.loads_on_demand = loads_on_demand


@pytest.mark.parametrize(
    ("state", "loads_on_demand", "is_ready"),
    [
        (ModelState.UNLOADED, True, True),
        (ModelState.UNLOADING, True, True),
        (ModelState.FAILED, True, False),
        (ModelState.LOADING, False, False),
        (ModelState.UNLOADED, False, False),
    ],
)
async def test_model_is_ready_if_its_next_request_loads_it(api, state, loads_on_demand, is_ready):
    models = api.context.models
    models.holder = Holder(loads_on_demand)
    models.known[0].state = state
    status, _ = await ask(api, "GET", f"/v2/models/{NAME}/ready")
    assert status == (200 if is_ready else 503)
    _, body = await ask(api, "GET", "/v1/config")
    assert (body == AVAILABLE) is is_ready


@pytest.mark.parametrize(
    ("path", "tenant", "message"),
    [
        ("/v1/config/reload", "t", "--api-key-file"),
        ("/v1/config/reload", "", "its own machine"),
        ("/v1/models/org/fake%201/load", "t", "--api-key-file"),
        ("/v1/models/org/fake%201/unload", "", "its own machine"),
    ],
)
async def test_only_operators_load_and_unload_models(api, path, tenant, message):
    status, body = await ask(api, "POST", path, tenant=tenant)
    assert status == 403
    assert message in body["error"]["message"]


@pytest.mark.parametrize("name", ["org/fake%201", "org%2Ffake%201"])
@pytest.mark.parametrize("version", ["", "/versions/1"])
async def test_a_model_by_kserves_paths(api, name, version):
    path = f"/v2/models/{name}{version}"
    status, body = await ask(api, "GET", path)
    assert (status, body["name"], body["versions"]) == (200, NAME, ["1"])
    assert body["platform"] == "OpenVINO"
    assert [tensor["name"] for tensor in (*body["inputs"], *body["outputs"])] == ["input", "output"]
    assert await ask(api, "GET", f"{path}/ready") == (200, None)
    status, body = await ask(api, "POST", f"{path}/infer")
    assert (status, "/v3/completions" in body["error"]) == (412, True)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/other"),
        ("GET", "/v2/models/other/ready"),
        ("GET", "/v2/models/other/versions/1/ready"),
        ("POST", "/v2/models/other/infer"),
    ],
)
async def test_unknown_model_is_a_404_at_kserve_paths(api, method, path):
    assert await ask(api, method, path) == (404, {"error": "The model `other` does not exist."})


@pytest.mark.parametrize("version", ["2", "0", "01", "x", "1.0"])
@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("GET", "/ready"), ("POST", "/infer")])
async def test_there_is_one_version(api, method, tail, version):
    path = f"/v2/models/org/fake%201/versions/{version}{tail}"
    error = f"The model `{NAME}, version {version}` does not exist."
    assert await ask(api, method, path) == (404, {"error": error})


async def test_failed_model_is_not_ready(api):
    api.backend.failure = "inference hung"
    status, body = await ask(api, "GET", "/v2/models/org%2Ffake%201/ready")
    assert (status, "inference hung" in body["error"]) == (503, True)
