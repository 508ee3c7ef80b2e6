"""Reads bodies and writes errors as they are on the wire, in OpenAI's dialect and in OVMS's.

It reads a body into a typed struct and renders errors. It knows no model and no field's meaning.
"""
