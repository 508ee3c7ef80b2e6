from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest

from fastovms import __version__
from fastovms.cli.main import main
from fastovms.config.model_config import DEMO_MODEL


def refused(capfd, *arguments: str) -> str:
    """The one line on stderr with which the command refuses to start."""
    try:
        code = main(arguments)
    except SystemExit as exit:
        code = exit.code
    output = capfd.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.endswith("\n")
    assert output.err.count("\n") == 1, output.err
    return output.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dance",), "model directory dance does not exist"),
        (("serve", "--port", "x"), "argument --port: must be an integer from 0 to 65535, not 'x'"),
        (("serve", "--port", "65536"), "--port"),
        (("serve", "--port", "-1"), "--port"),
        (("serve", "--host", ""), "argument --host: must not be empty"),
        (
            ("serve", "--cache-size", "-1"),
            "must be a number of GB, 0 or more and at most 1,000,000, ",
        ),
        (("serve", "--cache-size", "1e300"), "at most 1,000,000, not '1e300'"),
        (("serve", "--suffix-index-tokens", "9" * 20), "an integer from 0 to 67108864, not '999"),
        (("serve", "--cache-size", "nan"), "--cache-size"),
        (("serve", "--cache-size", "inf"), "--cache-size"),
        (("serve", "--max-num-seqs", "0"), "must be an integer at least 1, not '0'"),
        (("serve", "--max-num-batched-tokens", "1.5"), "--max-num-batched-tokens"),
        (("serve", "--plugin-config", "{"), "argument --plugin-config: must be a JSON object"),
        (("serve", "--plugin-config", "[]"), "--plugin-config"),
        (("serve", "--device", ""), "--device"),
        (("serve", "--unknown"), "--unknown"),
        (("serve", "a", "b"), "b"),
    ],
)
def test_wrong_flags(capfd, arguments, message):
    assert message in refused(capfd, *arguments)


def test_missing_model_directory(capfd, tmp_path):
    missing = str(tmp_path / "nowhere")
    line = refused(capfd, "serve", missing, "--port", "0")
    assert line == f"fastovms: model directory {missing} does not exist\n"


def test_directory_that_is_no_model(capfd, tmp_path):
    line = refused(capfd, "serve", str(tmp_path), "--port", "0")
    assert "has no openvino_model.xml" in line


def test_broken_model(capfd, tmp_path):
    for name in ("model.xml", "model.bin", "tokenizer.xml", "detokenizer.xml"):
        (tmp_path / f"openvino_{name}").write_text('<net name="x" version="11"/>')
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 10, "n_ctx": 10, "eos_token_id": 1})
    )
    line = refused(capfd, "serve", str(tmp_path), "--port", "0")
    assert str(tmp_path) in line


def test_port_in_use(capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(capfd, "serve", "--port", str(port))
    assert line == f"fastovms: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_unknown_host(capfd):
    assert "cannot listen on 203.0.113.1:0" in refused(capfd, "serve", "--host", "203.0.113.1",
                                                       "--port", "0")  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--ssl-certfile", "{0}/none.pem"), "cannot use the TLS files {0}/none.pem: No such file"),
        (("--ssl-keyfile", "{0}/key.pem"), "a TLS key is given without a certificate"),
        (("--api-key-file", "{0}/none"), "cannot read the API keys in {0}/none"),
        (("--access-log-file", "{0}"), "cannot write the log {0}: Is a directory"),
        (("--uds", "{0}"), "cannot listen on unix:{0}: it exists and is not a socket"),
        (("--listen", "nowhere"), "address 'nowhere': expected host:port"),
        (("--listen", "::1:80"), "address '::1:80': write an IPv6 address in brackets"),
        (
            ("--precision=exact", '--plugin-config={{"INFERENCE_PRECISION_HINT": "bf16"}}'),
            "--precision exact cannot be used with plugin_config INFERENCE_PRECISION_HINT bf16, "
            "only with f32",
        ),
    ],
)
def test_what_cannot_be_had(capfd, tmp_path, flags, message):
    line = refused(capfd, "serve", *(flag.format(tmp_path) for flag in flags))
    assert line.startswith("fastovms: " + message.format(tmp_path))


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help")])
def test_help(arguments):
    done = subprocess.run(
        [sys.executable, "-m", "fastovms", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.startswith("usage: fastovms")
    if "serve" in arguments:
        for flag in ("--host", "--port", "--model-name", "--cache-size", "--max-num-seqs",
                     "--max-num-batched-tokens", "--device", "--plugin-config"):  # fmt: skip
            assert flag in done.stdout
        assert "(default: 8000)" in " ".join(done.stdout.split())


def test_help_does_not_wait_for_openvino():
    code = (
        "import sys; from fastovms.cli.main import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: sys.exit('openvino' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("arguments", [("serve",), ("pull", "a/b")])
def test_a_signal_before_anything_is_served(number, arguments):
    code = (
        "import time; from fastovms.cli import main as cli\n"
        "def wait(*_):\n  print('starting', flush=True)\n  time.sleep(60)\n"
        "cli._serve, cli._pull = lambda *_: wait(), wait\n"
        "cli.run()"
    )
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"starting\n"
        process.send_signal(number)
        assert process.wait(10) == (0 if arguments == ("serve",) else 128 + number)
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_version(capfd):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capfd.readouterr().out == f"fastovms {__version__}\n"


def test_the_demo_model_is_inside_the_package():
    assert DEMO_MODEL.parent.name == "fastovms"
