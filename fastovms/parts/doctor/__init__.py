"""Examines the machine, an installation and a model before a server runs there: `fastovms
doctor`."""
