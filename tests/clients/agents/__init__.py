"""Runs Codex, Claude Code and OpenAI's Agents SDK with the server and a scripted model.

    python -m tests.clients.agents [--record] [FOLDER]

It needs npm, and installs the agents in FOLDER (default: a temporary directory). Each agent
performs a task with three calls of its shell, or of the tools in `own_tools.mjs`. `--record` writes
their requests to `traffic.json`, which `tests/clients/test_agent_traffic.py` replays.
"""
