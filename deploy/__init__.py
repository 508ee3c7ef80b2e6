"""How many servers are run as one."""
