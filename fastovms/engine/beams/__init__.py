"""Searches beams: one request whose samples are the best of many that grow together.

`BeamRequest` scores and forks sequences of the scheduler as `BeamSearcher` decides. How a token is
drawn without a search is not known here.
"""
