"""Lists the flags: their names, values and help, those of OpenVINO Model Server and vLLM too.

It reads values and says what is allowed. What becomes of them is not its concern.
"""
