"""Runs Codex and Claude Code against the server, with a scripted model.

python -m tests.clients.agents [--record] [FOLDER]

It needs npm, and installs both in FOLDER (default: a temporary one). Each does a task of three
calls of its shell. `--record` writes what they send to `traffic.json`, which
`tests/clients/test_agent_traffic.py` sends again.
"""
