"""Assembles the server: loads the models, and runs a server or a batch file on them."""
