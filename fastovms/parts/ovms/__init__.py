"""Reads and writes the files of OpenVINO Model Server: graphs, config lists, plugin settings.

Their contents become settings of this server (`graph`, `config_list`, `plugin_config`). The package
does not look for models or parse flags.
"""
