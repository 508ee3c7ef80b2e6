"""The process that packs and checks the decode kernels' weights outside the server."""

from __future__ import annotations

from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import openvino as ov

from fastovms.backends.processes import receive, send
from fastovms.engine.kernels.assembler import WeightStore
from fastovms.engine.kernels.chunk_products import CHUNK_BITS
from fastovms.engine.kernels.compiler import compiled_mark, find_instructions
from fastovms.engine.model.devices import available_memory, format_size, reason_of
from fastovms.engine.model.paging import read_paged_graph
from fastovms.parts.decode_kernels import check
from fastovms.parts.decode_kernels.few_rows import (
    bytes_read,
    cache_shape,
    fastest_kernels,
    pack_weights,
)
from fastovms.parts.decode_kernels.kept import CachedWeights, written_weights
from fastovms.parts.decode_kernels.prepare import MEMORY_SHARE, PACKED, Preparation, Prepared


class _UnusableError(Exception):
    """Raised if the kernels cannot be used; the message is the reason."""


def prepare(given: Preparation) -> Prepared:
    """Packs and checks the weights unless the cache has them; if `given.entry` is set, checks the
    whole model with that entry instead. Returns the entry or the reason why there is none."""
    paged = read_paged_graph(ov.Core(), given.model_dir, given.max_model_len)
    instructions = find_instructions()
    if instructions is None:
        return Prepared(None, "this CPU has neither AVX2 nor AVX-512 VNNI")
    kernels = fastest_kernels(paged, instructions, given.num_threads)
    if (mark := compiled_mark(kernels.instructions)) is not None:
        mark.touch()
    if given.entry is not None:
        model = check.compile_whole(paged, given.device, given.precisions)
        kept = CachedWeights(given.entry)
        store = WeightStore(kept.kernels(given.num_threads), kept.room_for)
        wrong = check.why_wrong(model, store, is_long=False)
        if wrong is not None and store.kernels.chunk_product:
            store.kernels = replace(store.kernels, chunk_product=0)
            wrong = check.why_wrong(model, store, is_long=False)
            if wrong is None:
                kept.forbid_chunk_product()
        return Prepared(given.entry if wrong is None else None, wrong or "")

    def fill(directory: Path) -> None:
        free = available_memory()
        layers = check.compile_cut(paged, given.device, given.precisions)
        shape = cache_shape(layers.cache_inputs)
        size = bytes_read(paged, kernels, shape)
        if not size:
            raise _UnusableError("the kernels do not support the precisions of the model's weights")
        if size > MEMORY_SHARE * free:
            needed, room = format_size(size), format_size(free)
            raise _UnusableError(
                f"packed weights need {needed}, but only {room} of memory are free"
            )
        facts: dict[str, object] = {
            "instructions": kernels.instructions,
            "num_threads": given.num_threads,
            "cache": None if shape is None else asdict(shape),
            "bytes_read": size,
        }
        with written_weights(directory, facts) as written:
            store = WeightStore(kernels, written.room_for)
            pack_weights(paged, store, shape)
            wrong = check.wrong_experts(paged, store) or check.why_wrong(layers, store)
            if wrong is not None and kernels.chunk_product:
                # Chunks may need activations of more bits.
                store.kernels = replace(kernels, chunk_product=0)
                wrong = check.wrong_experts(paged, store) or check.why_wrong(layers, store)
            if wrong is not None:
                raise _UnusableError(wrong)
            facts["chunk_bits"] = CHUNK_BITS if store.kernels.chunk_product else 0

    with given.caches[0].exclusive(PACKED, given.key):
        for cache in given.caches:
            try:
                entry = cache.find(PACKED, given.key) or cache.put(PACKED, given.key, fill)
            except _UnusableError as error:
                return Prepared(None, str(error))
            if entry is not None:
                return Prepared(entry)
    return Prepared(None, "the packed weights cannot be stored in the cache or below /tmp")


def serve(connection: Connection[Any, Any]) -> None:
    """Receives a `Preparation`, prepares the kernels and sends the `Prepared` result."""
    given = receive(connection)
    try:
        result = prepare(given)
    except check.NotEnoughMemory:
        result = Prepared(None, "too little memory is free to check them")
    except Exception as error:
        result = Prepared(None, reason_of(error))
    send(connection, result)
