"""The remedies of the page Troubleshooting, and the tables that show them beside the messages.

Each section takes the messages of some modules. A message without a remedy of its own has that of
its section.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from docs.messages_of_code import Message


class Section(NamedTuple):
    """Messages with one remedy.

    Attributes:
        modules: beginnings of the paths of their modules, below the package.
        advice: what to do.
        own: what to do about single messages, by a part of the message.
    """

    title: str
    modules: tuple[str, ...]
    advice: str
    own: Mapping[str, str] = {}


SECTIONS: Final[Sequence[Section]] = (
    Section(
        "GGUF files",
        ("gguf/",),
        "The file has something that this server does not compute, or it is corrupt. Download it "
        "again, take a file of another quantizer or a [supported architecture]"
        "(architectures.md#gguf-files), or export the original model with "
        "[optimum-cli](models.md#export-a-model).",
        {
            "parts of a model, of which": "Download the missing parts into the same directory.",
            "split.": "The parts are of different models, or were renamed: download them again.",
            "several GGUF files": "Name the file: `fastovms serve DIR/FILE.gguf`.",
            "is not a valid GGUF file": "The download was cut short or is corrupt: compare its "
            "size with the hub's and download it again.",
            "general.type must be model": "It is an adapter, a vocabulary or a projector of "
            "images. Name the "
            "file of the model.",
            "--cache-dir": "Free space there.",
            "could not be converted": "Usually memory: the converter needs room for the weights. "
            "Free some, or take a smaller quantization.",
            "before May 2024": "Take a file that was made later.",
        },
    ),
    Section(
        "Model directories",
        (
            "backends/model_task.py",
            "backends/model_files.py",
            "app/choice.py",
            "engine/model/paging.py",
            "parts/speech",
            "parts/images",
            "text/",
        ),
        "A file of the model's directory is missing, corrupt, or of a kind that the server does "
        "not run. Export the model again: `optimum-cli export openvino --model ORG/NAME "
        "--weight-format int4 DIR`. `fastovms doctor DIR` lists what it finds.",
        {
            "is not a model exported by optimum-intel": "Give the directory that "
            "`openvino_model.xml` is in. If the tokenizer is missing, "
            "`pip install openvino-tokenizers` in the environment of optimum-cli and export again.",
            "cannot be served: it is …": "PyTorch, ONNX: export it with `optimum-cli export "
            "openvino`. An adapter: give the base model, and the adapter by `--lora-modules`: see "
            "[Adapters](lora.md). Encoder-decoder models other than Whisper are not supported.",
            "… does not exist": "Check the path. ORG/NAME is a model of a hub only if no such "
            "directory exists.",
            "nor a GGUF file": "Give the directory that `openvino_model.xml` is in, or a file that "
            "begins with the bytes GGUF.",
            "trying the genai backend": "No action needed: the model runs on the "
            "[second backend](how-it-runs.md#the-genai-backend), which has fewer features.",
            "the genai backend cannot run it either": "Neither backend runs this graph. Look for "
            "the model in [Supported architectures](architectures.md), try a GGUF file of it, or "
            "an export with another version of transformers.",
            "which --backend paged does not support": "Leave `--backend paged` out.",
            "--enable-prompt-lookup cannot be used together": "Give one of the two flags.",
            "is a draft head, which the genai": "Leave `--draft-model` out.",
            "--draft-model cannot be used": "Leave `--draft-model` out; drafts from earlier text "
            "need no flag.",
            "--max-model-len must be at most": "Give the stated length or less.",
            "config.json states vocab_size": "No action needed: the model's own number is used.",
            "end-of-text ids beyond": "No action needed, if answers end where they should.",
            "states no context length": "Give `--max-model-len`.",
            "has no effect; known are": "Remove the member, or correct its name.",
            "no eos_token_id": "Add `eos_token_id` to `generation_config.json`, or clients "
            "give `stop`.",
            "as exported is skipped: too little memory": "The model is served unchecked. Free "
            "memory and "
            "restart to have it [compared](how-it-runs.md#checks-before-a-model-is-served).",
            "as exported is skipped": "The model is served unchecked: compare some answers with "
            "the original.",
            "computes only short texts exactly": "The export or OpenVINO lacks a feature for "
            "longer "
            "texts: use the stated context, or a GGUF file of the model.",
            "does not show its sliding window": "Use the stated context, or export the model with "
            "a newer optimum-intel.",
            "no vocabulary projection": "Long prompts take more memory and time. Export the "
            "model with a newer optimum-intel.",
            "the attention masks of the model cannot be read": "The model was still compared with "
            "its "
            "exported graph. Compare some long answers with the original.",
            "--task … is not possible": "Leave `--task` out: it is found out from the files.",
            "reasoning parser … cannot be used together": "Leave both parsers out: the chat "
            "template determines them.",
            "detokenizer is unknown": "No action needed; streams cost more time.",
            "chat template is malformed": "Give a template that works: `--chat-template FILE`.",
            "extra vision": "`pip install '.[vision]'` in the clone.",
            "extra speech": "`pip install '.[speech]'` in the clone.",
        },
    ),
    Section(
        "Memory and the device",
        (
            "backends/engine_thread.py",
            "backends/sliced_process.py",
            "backends/paged/",
            "parts/adapters",
            "parts/beams",
            "parts/comparison",
            "parts/decode_kernels",
            "parts/drafts",
            "parts/genai",
            "parts/grammars",
            "parts/tuning",
            "engine/model/",
            "app/supply.py",
            "app/compiling.py",
            "app/loading.py",
            "app/paged.py",
            "cli/tuning_report.py",
            "engine/kernels",
        ),
        "The device cannot run what was asked for. `fastovms doctor MODEL` shows memory, devices "
        "and what the model needs.",
        {
            "structured outputs are not available": "Copy `tokenizer.json` from the original "
            "model into the directory.",
            "tokens that the KV cache holds": "Raise `--cache-size` (GiB), choose "
            "`--kv-cache-precision u8`, or accept the shorter context.",
            "raise --cache-size": "Give a larger `--cache-size` (GiB), or leave it out.",
            "--model-memory must be more": "Raise `--model-memory`, or lower `--cache-size`.",
            "have the name": "Give each model a name of its own: `--model NAME=MODEL`.",
            "--device must be": "Give a device of [Devices](devices.md).",
            "or its driver is not available": "Install the GPU's driver (`/dev/dri` must be "
            "visible to the "
            "process) or leave `--device` out.",
            "does not have the vocabulary": "Take a draft model of the same family.",
            "is a recurrent or hybrid model, which cannot draft": "A hybrid model cannot draft. "
            "Take another draft model.",
            "takes images": "Take a draft model without images.",
            "draft head of the architecture": "Take an EAGLE-3 or MTP head or a smaller model.",
            "is a head for models with": "Take the head that was trained for this model.",
            "the draft model … cannot be used": "Take the head that was trained for this model, "
            "exported by a current optimum-intel.",
            "the draft model cannot be used": "The rest of the line says why; without "
            "`--draft-model` the server drafts from earlier text.",
            "--precision exact cannot be used": "Leave one of the two out.",
            "must be f32, f16 or u8": "Give one of these as `--kv-cache-precision`.",
            "decode kernels: not used": "No action needed: OpenVINO's kernels compute.",
            "decode kernels compute all steps": "No action needed, but prompts may be slower. The "
            "rest of the line says why OpenVINO did not compile the model.",
            "no separate graph is compiled": "No action needed: single requests are a little "
            "slower.",
            "tuning:": "No action needed: defaults are used. `fastovms tune MODEL` tries again.",
            "too busy for a measurement": "Stop other programs, then run `fastovms tune` again.",
            "needs no tuning": "Nothing to do: it adapts while it runs.",
            "together with a draft model": "No action needed: each prompt is computed again.",
        },
    ),
    Section(
        "Embedding models and rerankers",
        ("parts/embeddings",),
        "The export is not one that gives vectors or scores. Export it with "
        "`--task feature-extraction` or `--task text-classification`: see "
        "[Embeddings](embeddings.md#which-models).",
        {
            "openvino_detokenizer.xml is missing": "Export the model again, with "
            "openvino-tokenizers installed, so that `openvino_detokenizer.xml` is written.",
        },
    ),
    Section(
        "Addresses, keys and certificates",
        ("http/", "parts/media"),
        "A network flag cannot be used as given.",
        {
            "cannot listen on …: …": "“Address already in use”: another program has the port; "
            "find it with `ss -ltnp`, or give another `--port`. “Permission denied”: ports below "
            "1024 are for root; use a [reverse proxy](reverse-proxy.md).",
            "another server answers there": "Stop the other server or give another path.",
            "exists and is not a socket": "Delete the file or give another path.",
            "too long": "Give a shorter path for the socket.",
            "expected host:port": "Write `127.0.0.1:8000`, `[::1]:8000` or `unix:/run/x.sock`.",
            "IPv6 address in brackets": "Write `[::1]:8000`.",
            "no usable address": "The name does not resolve: check `--host`.",
            "connections: at most": "Raise `LimitNOFILE=` of the unit or `ulimit -n`.",
            "inherited descriptor": "The socket unit must have `ListenStream=` with a stream "
            "socket.",
            "cannot use the TLS files": "The certificate and the key must be PEM and belong "
            "together; the certificate comes first in its file.",
            "without a certificate": "Add `--ssl-certfile`.",
            "API key": "One key a line, without blanks; after a key only `admin` and limits: "
            "see [Secure it](secure.md#limits-of-a-key).",
            "--allowed-media-domains": "Give host names without `https://` and paths.",
            "--allowed-local-media-path": "Give a directory that exists.",
            "extra vision": "`pip install '.[vision]'` in the clone.",
        },
    ),
    Section(
        "Flags, variables and lists of models",
        (
            "cli/",
            "app/catalog.py",
            "parts/hub.py",
            "parts/ovms/",
            "parts/client/http_client.py",
            "service/",
            "app/batch_app.py",
            "api/rendering.py",
            "api/served.py",
        ),
        "Correct the flag, variable or file that the line names; "
        "`fastovms serve --help` and [Flags](flags.md) say what each takes.",
        {
            "is neither a command, a file nor a directory": "`fastovms --help` lists the commands. "
            "A model is a path, or ORG/NAME of a hub.",
            "there is no command": "The rest of the line says what to use.",
            "is not used": "No action needed: the rest of the line says why the setting has no "
            "effect here.",
            "cannot download": "Check the name ORG/NAME, the network (`HF_ENDPOINT`, proxies), and "
            "for a gated model `HF_TOKEN`. A download that was cut short resumes.",
            "cannot be downloaded": "If it is a directory, check the path; if it is a model of a "
            "hub, "
            "see `cannot pull`.",
            "cannot read the model's directory": "The repository directory is not readable: check "
            "`--model-repository-path`.",
            "--overwrite-models downloads that": "Give `--overwrite-models` once.",
            "contradicts": "Leave one of the two flags out.",
            "there is no … at …": "Paths in a `graph.pbtxt` start from its directory.",
            "is not a flag that a file or a variable may set": "Give it on the command line.",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "`pip install '.[otel]'`, or unset the variable.",
            "OTEL_EXPORTER_OTLP_PROTOCOL must be": "Set "
            "`OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf`.",
            "cannot write the log": "Give `--log-file` a path that the server's user may write.",
            "parser must be one of": "Leave the flag out, or give a "
            "[name of the table](chat-and-tools.md#tool-call-formats).",
        },
    ),
    Section(
        "State, files and caches",
        (
            "state/",
            "parts/postgres",
            "parts/state_transfer.py",
            "parts/prefix_cache",
            "engine/jit.py",
            "system/",
            "parts/batches",
            "app/serve.py",
        ),
        "The server cannot use a directory or a database as it should. Answers are still given "
        "unless the command ends.",
        {
            "responses are kept in memory and lost": "Another server uses the directory, or it "
            "cannot be written: give each server its own `--state-dir`.",
            "responses are not stored until": "Another server uses the directory, or the disk "
            "cannot be written: make room on it or mount it read-write. The server tries again.",
            "responses are still not stored": "Make room on the disk or mount it read-write.",
            "responses are stored on disk from now on": "No action needed: the disk works again.",
            "cannot keep the state in": "Give a `--state-dir` that is a directory of this user, or "
            "a database that this version may use.",
            "responses are not stored": "The database cannot be reached: see "
            "[State in PostgreSQL](state.md#when-the-database-cannot-be-reached).",
            "is reachable again": "No action needed.",
            "--state-url is not a URL": "Write `postgresql://USER@HOST/DATABASE`.",
            "may have a password in it": "Put the password into a file: `--state-password-file`.",
            "PostgreSQL needs psycopg": "`pip install '.[postgres]'` in the clone.",
            "is corrupt": "Of a cache: no action needed, it is computed again. Of an export: make "
            "it again.",
            "has the format": "It was written by another version: do what the message says.",
            "owned by user": "Give the directory to the server's user: `chown`.",
            "every user of this machine can change": "`chmod go-w` the path.",
            "prompts are kept in memory only": "Another server uses the directory, or the disk is "
            "full: give `--prefix-cache-dir`.",
            "prefix cache:": "No action needed: prompts are computed again. If it repeats, check "
            "the disk (`dmesg`, free room).",
            "no API key is needed": "Give `--api-key-file`, or listen on 127.0.0.1: see "
            "[Secure it](secure.md).",
            "API keys were removed": "No action needed: this follows from the new file of keys.",
            "records cannot be read": "They were written by a newer version; start that one to see "
            "them.",
        },
    ),
    Section(
        "Other commands",
        (
            "parts/client/terminal.py",
            "parts/load_test",
            "parts/ray_serve",
            "extensions.py",
            "app/routes.py",
        ),
        "A command that is not `serve`, or a package of your own, was given something it cannot "
        "use. `fastovms COMMAND --help` says what it takes.",
        {
            "plots need matplotlib": "`pip install '.[plots]'` in the clone.",
            "standard input is empty": "Pipe a text into `fastovms chat`.",
            "a Route": "See [Extensions](extensions.md#errors).",
        },
    ),
)


REASONS: Final[Mapping[str, str]] = {
    "it takes embeddings instead of tokens": "This is the language part of a vision model. Give "
    "the directory of the whole model.",
    "it is part of an encoder-decoder model": "Not supported: T5, BART and their kind.",
    "it is an encoder, such as an embedding model": "Serve it as an embedding model: "
    "[Embeddings](embeddings.md).",
    "it was exported without state": "Export it again with `--task text-generation-with-past`.",
    "it has no output named logits": "Not a model that generates. Export it with "
    "`--task text-generation-with-past`.",
    "no attention of it was exported as OpenVINO's operation": "The export splits attention into "
    "other operations. Try a newer optimum-intel, or a GGUF file of the model.",
    "it has no attention, as recurrent models have none": "Not supported: Mamba and its kind.",
    "OpenVINO makes no tables of that part": "OpenVINO's paged attention does not support this "
    "hybrid model as it was exported. Export it again with optimum-intel 2.2 or later; see "
    "[Supported architectures](architectures.md).",
    "leaves out part of": "OpenVINO computes another function than the export. Try a "
    "newer OpenVINO or optimum-intel, or a GGUF file of the model. `--backend genai` is tried by "
    "itself unless `--backend paged` is given.",
    "the soft cap of attention scores": "Gemma 2: answers differ a little. Choose Gemma 3 where "
    "that matters.",
    "no dynamic scaling of positions (NTK)": "Use the stated context.",
    "its graph scales positions by the longest text of all that run": "Use the stated context.",
    "its attention hides or weighs tokens as paged attention does not": "Use the stated context "
    "(Llama 4: its first chunk), or another backend.",
}
"""What the end of `cannot be served: ...` and of warnings about contexts may say."""


def section_of(message: Message) -> Section:
    """Returns the section of a message. Raises LookupError: no section has its module."""
    for section in SECTIONS:
        if message.module.startswith(section.modules):
            return section
    raise LookupError(f"no section of docs/remedies.py has the module {message.module}")


def remedy_of(message: Message, section: Section) -> str | None:
    """Returns what to do about a message; None = what its section says."""
    return next((text for part, text in section.own.items() if part in message.text), None)


def unused_remedies(messages: Sequence[Message]) -> list[str]:
    """Returns the keys of remedies that belong to no message."""
    used = {
        part for message in messages for part in section_of(message).own if part in message.text
    }
    return [part for section in SECTIONS for part in section.own if part not in used]


def reason_table(rows: Mapping[str, str] = REASONS) -> list[tuple[str, str]]:
    """Returns the rows of the reasons, as cells of a table."""
    return [(f"`… {reason} …`", remedy) for reason, remedy in rows.items()]
