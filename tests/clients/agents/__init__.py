"""Runs Codex, Claude Code and OpenAI's Agents SDK against the server, with a scripted model.

python -m tests.clients.agents [--record] [FOLDER]

It needs npm, and installs them in FOLDER (default: a temporary one). Each does a task of three
calls of its shell, or of the tools in `own_tools.mjs`. `--record` writes what they send to
`traffic.json`, which `tests/clients/test_agent_traffic.py` sends again.
"""
