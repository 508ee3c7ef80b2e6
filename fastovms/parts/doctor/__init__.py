"""`fastovms doctor`: examines the machine, the installation and a model before a server runs."""
