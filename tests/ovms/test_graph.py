"""Tests of `fastovms/parts/ovms/graph.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.params import Task
from fastovms.parts.ovms.graph import CALCULATORS, GRAPHS, read_graph
from fastovms.parts.ovms.plugin_config import parse_plugin_config, read_plugin_config
from fastovms.server_config import CHAT, ENCODER, ENGINE, FILES, IMAGES, LIMITS, SPEAKING


@pytest.mark.parametrize("name", CALCULATORS)
def test_every_option_of_a_graph_has_a_field_or_a_reason(name):
    calculator = CALCULATORS[name]
    assert calculator.group.required == ("models_path",)
    assert set(calculator.group.options) == set(calculator.options)
    for option in calculator.options.values():
        is_used = option.field is not None or option.unused is not None
        assert is_used or option.neutral


@pytest.mark.parametrize("text", ["{", "[]", "1", "NUM_STREAMS=1"])
def test_plugin_config_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a JSON object"):
        parse_plugin_config(text)


def test_empty_plugin_config_has_no_properties() -> None:
    assert parse_plugin_config(" \n") == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [(True, True), (False, False), ("true", True), ("False", False), (None, None)],
)
def test_prompt_lookup_is_not_a_property_of_the_device(given, expected):
    config = read_plugin_config({"prompt_lookup": given, "CACHE_DIR": "/c", "NUM_STREAMS": 1})
    assert config == ({"CACHE_DIR": "/c", "NUM_STREAMS": 1}, expected, [])


def test_plugin_options_of_other_pipelines_are_logged():
    config = read_plugin_config({"MAX_PROMPT_LEN": 1024, "ATTENTION_BACKEND": "SDPA"})
    assert config.properties == {}
    assert config.unused == [
        "plugin_config MAX_PROMPT_LEN is not used: it is for NPUs",
        "plugin_config ATTENTION_BACKEND is not used: attention is always paged",
    ]


@pytest.mark.parametrize(
    "config", [{"prompt_lookup": 1}, {"prompt_lookup": "yes"}, {"A": None}, {"A": [1]}, {"A": {}}]
)
def test_plugin_config_with_a_wrong_value_is_refused(config):
    with pytest.raises(ConfigurationError, match=f"plugin_config {next(iter(config))} must be"):
        read_plugin_config(config)


# Graphs that are written are read back.


@pytest.mark.parametrize("task", Task)
def test_written_graph_is_read_back(tmp_path: Path, task: Task) -> None:
    graph = GRAPHS[task]
    assert graph.calculator in CALCULATORS
    name = "device" if task in (Task.TEXT_GENERATION, Task.IMAGES) else "target_device"
    text = graph.filled(f'models_path: "./"\n{name}: "GPU"')
    assert f"      {name}" in text, "options stand below each other"
    path = tmp_path / "graph.pbtxt"
    path.write_text(text)
    given = read_graph(path).settings.given
    assert (given[FILES.path], given[ENGINE.device]) == (tmp_path, "GPU")
    for setting, value in CALCULATORS[graph.calculator].implied.items():
        assert given[setting] == value


def test_graph_of_images_sets_sizes_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "graph.pbtxt"
    options = {
        'max_resolution: "2048x1024"': (IMAGES.max_resolution, (2048, 1024)),
        'default_resolution: "64x32"': (IMAGES.default_resolution, (64, 32)),
        'resolution: "512x512"': (IMAGES.resolution, (512, 512)),
        "max_num_images_per_prompt: 3": (IMAGES.max_num_images_per_prompt, 3),
        "default_num_inference_steps: 4": (IMAGES.default_num_inference_steps, 4),
        "max_num_inference_steps: 9": (IMAGES.max_num_inference_steps, 9),
    }
    lines = ['models_path: "./"', *options, "num_images_per_prompt: 2", "guidance_scale: 7.5"]
    path.write_text(GRAPHS[Task.IMAGES].filled("\n".join(lines)))
    node = read_graph(path)
    for field, value in options.values():
        assert node.settings.given[field] == value
    assert [line.split()[0] for line in node.unused] == ["num_images_per_prompt", "guidance_scale"]
    path.write_text(path.read_text().replace("64x32", "64"))
    with pytest.raises(ConfigurationError, match="default_resolution must be WIDTHxHEIGHT"):
        read_graph(path)


_SPEAKER = """
    models_path: "./", plugin_config: '{ "NUM_STREAMS": "1" }', target_device: "CPU",
    voices: [
      { name: "anna", path: "anna.bin" },
      { name: "low", path: "%s/low.bin" }
    ]
"""
"""Options of OVMS's exporter, with a path that it makes absolute."""


@pytest.fixture
def speaker(tmp_path: Path) -> Path:
    path = tmp_path / "graph.pbtxt"
    for name in ("anna", "low"):
        (tmp_path / f"{name}.bin").touch()
    path.write_text(GRAPHS[Task.SPEECH_OUT].filled(_SPEAKER % tmp_path))
    return path


def test_graph_of_a_speaker_sets_voices_and_speeds(speaker: Path) -> None:
    node = read_graph(speaker)
    paths = node.settings.given[SPEAKING.voices]
    assert {name: path.resolve() for name, path in paths.items()} == {
        name: speaker.parent / f"{name}.bin" for name in ("anna", "low")
    }
    assert SPEAKING.min_speed not in node.settings.given
    speaker.write_text(GRAPHS[Task.SPEECH_OUT].filled('models_path: "./" speed_min: 0.5'))
    given = read_graph(speaker).settings.given
    assert given[SPEAKING.min_speed] == 0.5
    assert SPEAKING.voices not in given


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('voices: { name: "x" }', "voices.path is required"),
        ('voices: { name: "x" path: "anna.bin" x: 1 }', "voices.x is not an option"),
        ("voices: 1", "voices must be a message in braces"),
        ('voices: { name: "x" path: "x.bin" }', "voices: there is no file of x at"),
        ("speed_min: 5", "speed_min must be above 0 and at most speed_max, not 5 of 4.0"),
        ("speed_min: 0", "speed_min must be above 0"),
        ("speed_max: nan", "speed_max must be a number"),
    ],
)
def test_graph_of_a_speaker_with_a_wrong_option_is_refused(
    speaker: Path, options: str, message: str
) -> None:
    speaker.write_text(GRAPHS[Task.SPEECH_OUT].filled(f'models_path: "./" {options}'))
    with pytest.raises(ConfigurationError, match=message):
        read_graph(speaker)


# OVMS's graph files, as its documentation and its exporter write them.


GRAPH = """\
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
# OVMS_GRAPH_QUEUE_MAX_SIZE: AUTO

node: {{
  name: "{name}"
  calculator: "{calculator}"
  input_stream: "LOOPBACK:loopback"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "LOOPBACK:loopback"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  input_stream_info: {{
    tag_index: 'LOOPBACK:0',
    back_edge: true
  }}
  node_options: {{
      [type.googleapis.com / mediapipe.LLMCalculatorOptions]: {{
          {options}
      }}
  }}
  input_stream_handler {{
    input_stream_handler: "SyncSetInputStreamHandler",
    options {{
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] {{
        sync_set {{
          tag_index: "LOOPBACK:0"
        }}
      }}
    }}
  }}
}}
"""


def write(folder: Path, options: str, *, name: str = "LLM", calculator: str = "HttpLLMCalculator"):
    path = folder / "graph.pbtxt"
    path.write_text(GRAPH.format(name=name, calculator=calculator, options=options))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("model", "draft"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "other.json").write_text("{}")
    (tmp_path / "model.gguf").touch()
    (tmp_path / "model.txt").touch()
    return tmp_path


def test_options_of_a_graph_become_settings(folder):
    path = write(
        folder,
        """
        models_path: "./model",
        plugin_config: '{ "KV_CACHE_PRECISION": "u8", "prompt_lookup": true}',
        enable_prefix_caching: false,
        cache_size: 10,
        max_num_batched_tokens: 512;
        max_num_seqs: 0x20
        device: "GPU"
        best_of_limit: 5 max_tokens_limit: 1000
        draft_models_path: "draft"
        draft_eagle3_mode: true
        tool_parser: "hermes3" reasoning_parser: ""
        generation_config_path: "other.json"
        dynamic_split_fuse: true pipeline_type: LM_CB
        """,
    )
    node = read_graph(path)
    assert node.settings.given == {
        FILES.path: folder / "model",
        ENGINE.plugin_config: {"KV_CACHE_PRECISION": "u8", "prompt_lookup": True},
        ENGINE.enable_prefix_caching: False,
        ENGINE.cache_size: 10,
        ENGINE.max_num_batched_tokens: 512,
        ENGINE.max_num_seqs: 32,
        ENGINE.device: "GPU",
        LIMITS.best_of_limit: 5,
        LIMITS.max_tokens_limit: 1000,
        ENGINE.draft_model: folder / "draft",
        CHAT.tool_parser: "hermes3",
        FILES.generation_config: folder / "model" / "other.json",
    }
    assert node.unused == []


@pytest.mark.parametrize(
    "option",
    [
        "dynamic_split_fuse: false",
        "enable_tool_guided_generation: true",
        "cache_interval_multiplier: 8",
        "chat_template_mode: MINJA",
        "cache_eviction_config: { start_size: 32 recent_size: 128 max_cache_size: 672 "
        "kv_crush_config { budget: 2 anchor_point_mode: MEAN } }",
        "sparse_attention_config { mode: XATTENTION xattention_threshold: 0.8 }",
    ],
)
def test_unused_option_of_a_graph_is_logged(folder, option):
    node = read_graph(write(folder, f'models_path: "model" {option}'))
    assert node.settings.given == {FILES.path: folder / "model"}
    [line] = node.unused
    assert line.startswith(f"{option.partition(':')[0].split()[0]} is not used: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "line 18: models_path is required"),
        ('models_path: ""', "there is no directory or GGUF file of a model at"),
        ('models_path: "none"', "models_path: there is no directory or GGUF file of a model at"),
        ('models_path: "model.txt"', "models_path: there is no directory or GGUF file"),
        ('models_path: "model" models_path: "model"', "models_path is given twice"),
        ('models_path: "model" max_num_seq: 4', "max_num_seq is not an option"),
        ('models_path: "model"\nmax_num_seqs: 0', "line 20: max_num_seqs must be an integer"),
        ('models_path: "model" max_num_seqs: "4"', "not '4'"),
        ('models_path: "model" max_num_seqs: 4.0', "not 4.0"),
        ('models_path: "model" cache_size: 1.5', "cache_size must be an integer"),
        ('models_path: "model" max_tokens_limit: 4294967296', "to 4294967295, not 4294967296"),
        ('models_path: "model" enable_prefix_caching: yes', "must be true or false, not yes"),
        ('models_path: "model" pipeline_type: LMM', "must be one of AUTO, LM, VLM"),
        ('models_path: "model" pipeline_type: "LM"', "must be one of AUTO, LM, VLM"),
        ('models_path: "model" draft_device: "CPU"', "draft_device needs draft_models_path"),
        ('models_path: "model" draft_models_path: "none"', "draft_models_path: there is no"),
        ('models_path: "model" generation_config_path: "none"', "there is no file at"),
        ('models_path: "model" cache_eviction_config { start_size: 1 }',
         "cache_eviction_config.recent_size is required"),
        ('models_path: "model" cache_eviction_config: 1', "must be a message in braces"),
        ('models_path: "model" sparse_attention_config { mode: FAST }',
         "sparse_attention_config.mode must be one of TRISHAPE, XATTENTION, not FAST"),
        ('models_path: "model" sparse_attention_config { xattention_threshold: "a" }',
         "must be a number"),
        ('models_path: "model" sparse_attention_config { other: 1 }',
         "sparse_attention_config.other is not an option"),
        ("models_path", "expected : or {"),
    ],
)  # fmt: skip
def test_wrong_option_of_a_graph_is_refused(folder, options, message):
    path = write(folder, options)
    with pytest.raises(ConfigurationError) as caught:
        read_graph(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_graph_of_a_gguf_file_is_read(folder):
    path = write(folder, 'models_path: "./model.gguf"')
    assert read_graph(path).settings.given == {FILES.path: folder / "model.gguf"}


@pytest.mark.parametrize(
    ("calculator", "message", "options", "given"),
    [
        ("EmbeddingsCalculatorOV", "EmbeddingsCalculatorOVOptions", "",
         {ENCODER.task: "embeddings"}),
        ("EmbeddingsCalculatorOV", "EmbeddingsCalculatorOVOptions",
         'normalize_embeddings: false pooling: LAST truncate: true target_device: "CPU" '
         """plugin_config: '{"NUM_STREAMS": 1}'""",
         {ENCODER.task: "embeddings", ENCODER.normalize: False, ENCODER.pooling: "last",
          ENCODER.truncate: True, ENGINE.device: "CPU", ENGINE.plugin_config: {"NUM_STREAMS": 1}}),
        ("RerankCalculatorOV", "RerankCalculatorOVOptions",
         "max_allowed_chunks: 9 max_position_embeddings: 256",
         {ENCODER.task: "rerank", ENCODER.max_allowed_chunks: 9, ENGINE.max_model_len: 256}),
    ],
)  # fmt: skip
def test_graph_of_an_encoder_becomes_settings(folder, calculator, message, options, given):
    path = write(folder, f'models_path: "model" {options}', calculator=calculator)
    path.write_text(path.read_text().replace("LLMCalculatorOptions", message))
    node = read_graph(path)
    assert node.settings.given == {**given, FILES.path: folder / "model"}
    assert node.unused == []


WHOLE = GRAPH.format(
    name="LLM", calculator="HttpLLMCalculator", options='models_path: "model"'
).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (WHOLE * 2, "a graph must have one node, with one of HttpLLMCalculator, "),
        (b'input_stream: "a"', "not 0"),
        (WHOLE.replace(b"HttpLLM", b"Python"), "must be one of HttpLLMCalculator, Embeddings"),
        (WHOLE.replace(b'name: "LLM"', b""), "the node needs a name"),
        (WHOLE.replace(b"LLMCalculatorO", b"O"), "needs one mediapipe.LLMCalculatorOptions"),
        (b"node {", "line 1: expected the name of a field"),
        (b"\xff", "cannot read"),
        (None, "cannot read"),
    ],
)
def test_graph_of_another_kind_is_refused(folder, content: bytes | None, message: str) -> None:
    if content is not None:
        (folder / "graph.pbtxt").write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_graph(folder / "graph.pbtxt")
    assert message in str(caught.value)


def test_options_in_the_extension_of_older_graphs_are_read(folder):
    path = write(folder, 'models_path: "model"')
    text = path.read_text().replace("node_options", "options")
    path.write_text(
        text.replace("type.googleapis.com / mediapipe.LLMCalculatorOptions",
                     "mediapipe.LLMCalculatorOptions.ext")
    )  # fmt: skip
    assert read_graph(path).settings.given == {FILES.path: folder / "model"}
