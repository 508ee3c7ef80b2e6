"""Faults to plant, one at a time, to see whether the simulation finds them.

python -m tests.simulation.planted [NAME...] [--seconds 300] [--jobs 2] [--table FILE]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

_BACKEND: Final = "fastovms.backends.paged.backend"
_THREAD: Final = "fastovms.backends.engine_thread"
_BLOCKS: Final = "fastovms.engine.blocks"
_SCHEDULER: Final = "fastovms.engine.scheduler"
_ENGINE: Final = "fastovms.engine.engine"
_GENERATE: Final = "fastovms.api.generate"
_PROTOCOL: Final = "fastovms.http.protocol"
_EVENTS: Final = "fastovms.parts.responses.events"
_OPERATIONS: Final = "fastovms.state.operations"
_SOCKET: Final = "fastovms.parts.responses.socket"
_WEBSOCKET: Final = "fastovms.http.websocket"
_RUNNING: Final = "fastovms.state.running_responses"
_POSTGRES: Final = "fastovms.parts.postgres.database"
_WRITERS: Final = "fastovms.http.writers"
_LISTENERS: Final = "fastovms.http.listeners"
_WATCH: Final = "fastovms.service.watch"
_CLOCK: Final = "fastovms.system.clock"
_LIFECYCLE: Final = "fastovms.service.lifecycle"
_SERVE: Final = "fastovms.app.serve"
_SUPPLY: Final = "fastovms.app.supply"
_POOL: Final = "fastovms.parts.several_models.model_pool"
_RESIDENCY: Final = "fastovms.parts.several_models.residency"
_JOBS: Final = "fastovms.backends.job_thread"
_ENCODER: Final = "fastovms.parts.embeddings.encoder_backend"
_SPEECH: Final = "fastovms.parts.speech.speech_backend"


class Fault(NamedTuple):
    """A text of a module that is replaced by another one.

    Attributes:
        program: the module whose worlds are to find it.
    """

    name: str
    module: str
    old: str
    new: str
    program: str = "tests.simulation"


FAULTS: Final = (
    Fault(
        "the engine is not told of an abort",
        _BACKEND,
        "            self._commands.put(Abort(request_id, index))",
        "            pass",
    ),
    Fault(
        "a generation that is left is not aborted",
        _GENERATE,
        "        if self._num_unfinished:\n            for request",
        "        if False:\n            for request",
    ),
    Fault(
        "a permit is lost where a step has no output",
        _BACKEND,
        "        self._undelivered.release()",
        "        if step.outputs:\n            self._undelivered.release()",
    ),
    Fault(
        "the engine waits for commands while it has work",
        _THREAD,
        "receive(not engine.has_work)",
        "receive(True)",
    ),
    Fault(
        "closing does not end the engine's thread",
        _BACKEND,
        "        self._commands.put(Close())",
        "        pass",
    ),
    Fault(
        "an engine that fails ends no request",
        _BACKEND,
        "            self._requests.end_all(FinishReason.ERROR, reason)",
        "            pass",
    ),
    Fault(
        "a request whose samples are all aborted is kept",
        _THREAD,
        "        if index is None or not request.unfinished:",
        "        if index is None:",
    ),
    Fault(
        "waiting samples are counted as one",
        _THREAD,
        "        self._num_submitted += request.params.n",
        "        self._num_submitted += 1",
    ),
    Fault(
        "the first block of a table is not freed",
        _BLOCKS,
        "in reversed(block_table):",
        "in reversed(block_table[1:]):",
    ),
    Fault(
        "a shared block has one reference",
        _BLOCKS,
        "            self._ref_counts[block_id] += 1",
        "            self._ref_counts[block_id] = 1",
    ),
    Fault(
        "a prompt is found in the cache to its last token",
        _BLOCKS,
        "(len(token_ids) - 1) // size",
        "len(token_ids) // size",
    ),
    Fault(
        "the key of a cached block lacks its parent",
        _BLOCKS,
        "    return parent_node, tokens + salt",
        "    return ROOT, tokens + salt",
    ),
    Fault(
        "an evicted block is still found",
        _BLOCKS,
        "            del self._entries[self._keys.pop(block_id)]",
        "            self._keys.pop(block_id)",
    ),
    Fault(
        "a block is registered before it is computed",
        _SCHEDULER,
        "range(sequence.num_registered_blocks, sequence.num_computed_tokens // size)",
        "range(sequence.num_registered_blocks, sequence.num_tokens // size)",
    ),
    Fault(
        "a block that two read is written to",
        _BLOCKS,
        "        return self._ref_counts[block_id] > 1",
        "        return self._ref_counts[block_id] > 2",
    ),
    Fault(
        "a forked block is not copied",
        _SCHEDULER,
        "        plan.block_copies.append(BlockCopy(source, target))",
        "        pass",
    ),
    Fault(
        "drafts are accepted unseen",
        _ENGINE,
        "index == num_drafts or token_id != drafts[index]",
        "index == num_drafts",
    ),
    Fault(
        "drafts count as computed",
        _SCHEDULER,
        "            sequence.num_computed_tokens = min(end, sequence.num_tokens)",
        "            sequence.num_computed_tokens = end",
    ),
    Fault(
        "a preempted sequence counts as computed",
        _SCHEDULER,
        "        sequence.num_computed_tokens = 0\n        sequence.num_registered_blocks = 0",
        "        sequence.num_registered_blocks = 0",
    ),
    Fault(
        "a sequence that stops still counts as running",
        _SCHEDULER,
        "        self.waiting.note_running(sequence.owner, -1)",
        "        pass",
    ),
    Fault(
        "one sequence too many runs",
        _SCHEDULER,
        "            if num_seqs + num_new > self.max_num_seqs:",
        "            if num_seqs + num_new > self.max_num_seqs + 1:",
    ),
    Fault(
        "all samples draw with one seed",
        "fastovms.engine.sampler",
        "np.random.SeedSequence((seed % 2**64, index))",
        "np.random.SeedSequence((seed % 2**64, 0))",
    ),
    Fault(
        "the rows of a draft are drawn at one place",
        "fastovms.engine.sampler",
        "rows.add(index, sequence, num_tokens + index - start)",
        "rows.add(index, sequence, num_tokens)",
    ),
    Fault(
        "tokens behind a stop string count",
        _GENERATE,
        "            num_tokens = delta.num_tokens",
        "            pass",
    ),
    Fault(
        "tokens count whose text was held back behind a stop string",
        "fastovms.text.stop",
        "self._num_before + bisect_left(self._starts, self.end)",
        "self._num_before + len(self._starts)",
    ),
    Fault(
        "a stop string does not end its sample in the engine",
        _GENERATE,
        "                self._backend.abort(self._requests[position].request_id, output.index)",
        "                pass",
    ),
    Fault(
        "half a character is sent",
        "fastovms.text.detokenizer",
        "        text, self._incomplete = decode_utf8(data, final=False)\n        if begin",
        "        text, self._incomplete = decode_utf8(data, final=True)\n        if begin",
    ),
    Fault(
        "a disconnect cancels no handler",
        _PROTOCOL,
        "        if task is not None:\n            task.cancel()",
        "        pass",
    ),
    Fault(
        "the memory of a body is not given back",
        _PROTOCOL,
        "        assert request is not None\n        server.give_back_body(request)",
        "        assert request is not None",
    ),
    Fault(
        "a lost connection stays registered",
        _PROTOCOL,
        "        self._server.remove(self)",
        "        pass",
    ),
    Fault(
        "an ended handler stays registered",
        _PROTOCOL,
        "        self._server.tasks.discard(task)",
        "        pass",
    ),
    Fault(
        "a reader that catches up gets nothing more",
        _PROTOCOL,
        "            stream.on_writable()",
        "            pass",
    ),
    Fault(
        "a pipelined request is forgotten",
        _PROTOCOL,
        "                self._respond(response)\n        self._go_on()",
        "                self._respond(response)",
    ),
    Fault(
        "requests wait at a turnstile that stays shut",
        _WRITERS,
        "        self._start_pass()\n        while self._waiting:",
        "        while False:",
    ),
    Fault(
        "an answer is written in two chunks with one length",
        _WRITERS,
        'data = b"%x\\r\\n%b\\r\\n0\\r\\n\\r\\n" % (len(data), data)',
        'data = b"%x\\r\\n%b\\r\\n\\r\\n" % (len(data), data)',
    ),
    Fault(
        "a commit is not synced",
        "fastovms.state.sqlite.database",
        '"PRAGMA synchronous = FULL"',
        '"PRAGMA synchronous = OFF"',
    ),
    Fault(
        "a response is acknowledged before it is stored",
        "fastovms.parts.responses.create",
        "        await background.accepted()",
        "        pass",
    ),
    Fault(
        "events are told before they are stored",
        _EVENTS,
        "        self._unsent += frames\n        if self._has_ended:",
        "        self._unsent += frames\n        if True:",
    ),
    Fault(
        "events are stored without what they were made of",
        _EVENTS,
        "        said = pack_outputs(outputs) if outputs else None",
        "        said = None",
    ),
    Fault(
        "what was told before a restart is told again",
        "fastovms.parts.responses.background",
        "        self._run.skip_events(self.log.num_events)",
        "        pass",
    ),
    Fault(
        "the numbers of stored events have a gap",
        _EVENTS,
        "        self._num_kept += len(frames)",
        "        self._num_kept += len(frames) + (len(frames) > 3)",
    ),
    Fault(
        "responses are not resumed",
        "fastovms.parts.responses.resumption",
        "MAX_ATTEMPTS: Final = 3",
        "MAX_ATTEMPTS: Final = 0",
    ),
    Fault(
        "a queued response is resumed with what was said after it was accepted",
        "fastovms.parts.responses.resumption",
        "fields, model.info, cut.input, job.items,",
        "fields, model.info, cut.input, None,",
    ),
    Fault(
        "a resumed response has no key",
        "fastovms.parts.responses.resumption",
        "caller = Caller(tenant=key.tenant,",
        'caller = Caller(tenant="",',
    ),
    Fault(
        "a request has no key",
        "fastovms.api.context",
        "caller=request.caller,",
        'caller=type(request.caller)(tenant=""),',
    ),
    Fault(
        "a line of a batch has no key",
        "fastovms.parts.batches.runner",
        "Caller(tenant=tenant, priority",
        'Caller(tenant="", priority',
    ),
    Fault(
        "a message over a WebSocket has no key",
        _SOCKET,
        "request.caller, request.trace = outer.caller, outer.trace",
        "request.trace = outer.trace",
    ),
    Fault(
        "a stored response lacks its output",
        _OPERATIONS,
        "(ItemOrigin.OUTPUT, response.output)]",
        "(ItemOrigin.OUTPUT, ())]",
    ),
    Fault(
        "a turn does not see the one before the last",
        _OPERATIONS,
        "chain = self._tables.chain(tenant, id, MAX_CHAIN - 1)",
        "chain = self._tables.chain(tenant, id, MAX_CHAIN - 1)[:1]",
    ),
    Fault(
        "a replay stops where more was logged meanwhile",
        _EVENTS,
        "            loop.call_soon(send)  # others are served first",
        "            pass",
    ),
    Fault(
        "the state's thread is not woken",
        "fastovms.state.state_store",
        "            self._jobs.append(_QueuedOperation(operation, future))\n"
        "            self._changed.notify()",
        "            self._jobs.append(_QueuedOperation(operation, future))",
    ),
    Fault(
        "a place in the background is not given back",
        "fastovms.parts.responses.background",
        "            self._places.give_back(run.owner)",
        "            pass",
    ),
    Fault(
        "a watch is not ended",
        "fastovms.state.store",
        "            self._watches[topic].discard(watch)",
        "            pass",
    ),
    Fault(
        "a reader of a log is not forgotten",
        _EVENTS,
        "        log.forget(stream)",
        "        pass",
    ),
    Fault(
        "the key of a cached block lacks its salt",
        _BLOCKS,
        "tokens + salt if parent_node in _ROOTS else tokens",
        "tokens",
    ),
    Fault(
        "a tenant learns of another one's cached prompts",
        _BLOCKS,
        "(not tenant or tenant in self._tenants.get(entry.block_id, ()))",
        "True",
    ),
    Fault(
        "a response is found by every tenant",
        "fastovms.state.tables",
        "{columns} FROM objects WHERE tenant = ? AND",
        "{columns} FROM objects WHERE tenant IS NOT CAST(? AS BLOB) AND",
    ),
    Fault(
        "a batch is found by every tenant",
        "fastovms.parts.batches.runner",
        "return self._records.find(tenant, id)",
        "return self._records.known.get(id)",
    ),
    Fault(
        "a file is found by every tenant",
        "fastovms.parts.batches.store",
        "record = self._records.find(tenant, id)",
        "record = self._records.known.get(id)",
    ),
    Fault(
        "lines of a batch that are done run again after a restart",
        "fastovms.parts.batches.runner",
        "if not self._log.is_done(found[0]))",
        "if True)",
    ),
    Fault(
        "the slot of a line is not given back",
        "fastovms.parts.batches.runner",
        "        task.add_done_callback(lambda task: slot.give_back())",
        "        pass",
    ),
    Fault(
        "a cancelled batch does not write the lines that did not run",
        "fastovms.parts.batches.runner",
        "await runner.skip_rest(_CODES[record.outcome])",
        "pass",
    ),
    Fault(
        "responses of one WebSocket run at once",
        _SOCKET,
        "if self._running is None and self._pending:",
        "if self._pending:",
    ),
    Fault(
        "a WebSocket forgets what it did not store",
        _SOCKET,
        "        self._id, self._items, self._size = id, items, size",
        "        self._size = size",
    ),
    Fault(
        "messages that wait for a WebSocket keep their memory",
        _WEBSOCKET,
        "        self.give_back(self._num_begun + sum(map(len, self._messages)))\n",
        "",
    ),
    Fault(
        "messages that wait for a turn keep their memory",
        _SOCKET,
        "            for turn in self._pending:\n"
        "                self._socket.give_back(len(turn.message))\n",
        "",
    ),
    Fault(
        "the memory of a WebSocket message is not counted",
        _WEBSOCKET,
        "        if not self._budget.take(self._sender, len(piece)):",
        "        self.give_back = lambda size: None\n        if False:",
    ),
    Fault(
        "the memory of a WebSocket message is given back before its turn ends",
        _SOCKET,
        "        request.turn = turn\n",
        "        request.turn = turn\n"
        "        self._socket.give_back(len(turn.message))\n"
        '        turn.message = b""\n',
    ),
    Fault(
        "a connection that ends keeps the memory of its history",
        _SOCKET,
        "            self._unstored.clear()\n            for task",
        "            for task",
    ),
    Fault(
        "frames that wait for their turn are forgotten",
        _WEBSOCKET,
        "        self._turnstile.wait(self._go_on)",
        "        pass",
    ),
    Fault(
        "a damaged block on disk is used",
        "fastovms.parts.prefix_cache.directory",
        "    if found != checksum:",
        "    if False:",
    ),
    Fault(
        "the key of a block on disk lacks its tenant",
        "fastovms.parts.prefix_cache.directory",
        "    tenant = namespace.tenant.encode()",
        '    tenant = b""',
    ),
    Fault(
        "the key of a block on disk lacks the blocks before it",
        "fastovms.parts.prefix_cache.directory",
        "        yield digest.digest()",
        "        yield hashlib.sha256(tokens[end - size : end]).digest()",
    ),
    Fault(
        "samples of one grammar share its state",
        "fastovms.grammar.compiler",
        "            compiled.matcher.deep_copy(),",
        "            compiled.matcher,",
    ),
    Fault(
        "a grammar reads tokens twice",
        "fastovms.grammar.state",
        "            self._num_read = len(token_ids)",
        "            self._num_read = len(token_ids) - (len(token_ids) % 16 == 0)",
    ),
    Fault(
        "keys are not read again",
        _LIFECYCLE,
        'stay in use."""\n        self._keys = self._read_keys()',
        'stay in use."""',
    ),
    Fault(
        "keys that cannot be read let everybody in",
        _LIFECYCLE,
        "        keys = read_api_keys(",
        "        try:\n            self._read_keys_of = read_api_keys(\n"
        "                self._config.api_key_file, self._environ, self._config.api_keys)\n"
        "        except ConfigurationError:\n            return None\n"
        "        keys = read_api_keys(",
    ),
    Fault(
        "the requests of a removed key run on",
        _SERVE,
        'server.cut(lambda request: request.caller.tenant not in tenants | {""})',
        "0",
    ),
    Fault(
        "the requests of all keys are cut when one is removed",
        _SERVE,
        'server.cut(lambda request: request.caller.tenant not in tenants | {""})',
        'server.cut(lambda request: request.caller.tenant != "")',
    ),
    Fault(
        "the background responses of all keys are cancelled at a reload",
        "fastovms.parts.responses.service",
        "self._runs.cancel_all(tenants)",
        "self._runs.cancel_all(frozenset())",
    ),
    Fault(
        "the batches of a key that returns stay paused",
        "fastovms.parts.batches.runner",
        "            elif record.id not in self._runs:\n                self._drive(record)",
        "            else:\n                pass",
    ),
    Fault(
        "a list of models that changes while models load is not read",
        _SUPPLY,
        "        if self._is_outdated:\n            self.reload_soon()",
        "        pass",
    ),
    Fault(
        "the file of the list of models is looked at once",
        _LIFECYCLE,
        "        self.start(loop)\n        stamp",
        "        stamp",
    ),
    Fault(
        "a removed model stays in memory",
        _POOL,
        "            self._residency.remove(name)\n            self._loaded",
        "            self._loaded",
    ),
    Fault(
        "a removed model is unloaded under its requests",
        _RESIDENCY,
        "self.leaves and self.state is ModelState.AVAILABLE and not self.num_uses",
        "self.leaves and self.state is ModelState.AVAILABLE",
    ),
    Fault(
        "a model whose settings have changed is not loaded again",
        _RESIDENCY,
        "model.retry_at = 0, 0.0\n        model.leaves = not model.is_away",
        "model.retry_at = 0, 0.0",
    ),
    Fault(
        "a model that was broken waits to be tried again when it is mended",
        _RESIDENCY,
        "        model.num_failures, model.retry_at = 0, 0.0\n        model.leaves",
        "        model.leaves",
    ),
    Fault(
        "a model that cannot be loaded any more is gone",
        _POOL,
        "        if former is None or former.config",
        "        if True or former.config",
    ),
    Fault(
        "a request that waits for a removed model is forgotten",
        _POOL,
        "self._waiters.refuse(name, BackendUnavailable(",
        "_ = (name, BackendUnavailable(",
    ),
    Fault(
        "a model that returns while it leaves is removed",
        _RESIDENCY,
        "            self._models[name].is_removed = False\n",
        "",
    ),
    Fault(
        "a certificate is not read again",
        _LISTENERS,
        "without a usable key\n        self._load(self.context)",
        "without a usable key",
    ),
    Fault(
        "a key that cannot be read spoils the certificate in use",
        _LISTENERS,
        "        self._new_context()  # a failed",
        "        # a failed",
    ),
    Fault(
        "a handshake that fails still counts",
        _LISTENERS,
        "        self._beginning.pop(task, None)\n        if task.cancelled():",
        "        if task.cancelled():",
    ),
    Fault(
        "a handshake may take for ever",
        _LISTENERS,
        '"ssl_handshake_timeout": HANDSHAKE_TIMEOUT',
        '"ssl_handshake_timeout": 1e6',
    ),
    Fault(
        "texts are encoded that nobody waits for",
        _JOBS,
        "            job.is_given_up = True",
        "            pass",
    ),
    Fault(
        "a request for vectors ends with the first batch of its texts",
        _ENCODER,
        "            if not job.num_left:",
        "            if True:",
    ),
    Fault(
        "rows are returned in the order in which they are computed",
        _ENCODER,
        "            job.rows[index] = row",
        "            job.rows[-job.num_left] = row",
    ),
    Fault(
        "an encoder that fails ends no request",
        _JOBS,
        "            self._end_all(EngineFailed(reason))",
        "            pass",
    ),
    Fault(
        "closing does not end an encoder's thread",
        _JOBS,
        "        self._commands.put(None)",
        "        pass",
    ),
    Fault(
        "an encoder that is gone still takes turns",
        _ENCODER,
        "            self._turn.remove_encoder()",
        "            pass",
    ),
    Fault(
        "texts of a batch that has ended count as running",
        _ENCODER,
        "        self._num_running = 0",
        "        pass",
    ),
    Fault(
        "a slice does not wait for steps",
        _THREAD,
        "is_free = not self._is_slicing and not self._num_stepping",
        "is_free = not self._is_slicing",
    ),
    Fault(
        "an encoder waits for a slice without being noticed",
        _THREAD,
        "while self._is_slicing or (self._waiting and self._is_due):",
        "while self._is_slicing:",
    ),
    Fault(
        "an encoder computes before others that came earlier",
        _THREAD,
        "is_free and self._is_due and self._waiting[0] is ticket",
        "is_free and self._is_due",
    ),
    Fault(
        "the last part of a document decides its score",
        "fastovms.parts.embeddings.rerank",
        "    np.maximum.at(scores, owners, _relevance(rows, "
        "uses_activation=options.uses_activation))",
        "    scores[owners] = _relevance(rows, uses_activation=options.uses_activation)",
    ),
    Fault(
        "texts that wait to be tokenized are forgotten",
        "fastovms.api.body",
        "            job.done.set_result(work.result())\n        self._begin_next()",
        "            job.done.set_result(work.result())",
    ),
    Fault(
        "vectors that are not numbers are answered",
        _ENCODER,
        "        if not np.isfinite(self.rows).all():",
        "        if False:",
    ),
    Fault(
        "tokens that were encoded are not counted",
        _ENCODER,
        "            self._counters.num_prompt_tokens += length",
        "            pass",
    ),
    Fault(
        "texts of batches are encoded first",
        _ENCODER,
        "        first = min(self._jobs, key=itemgetter(0))",
        "        first = max(self._jobs, key=itemgetter(0))",
    ),
    Fault(
        "audio that nobody waits for keeps its place",
        _SPEECH,
        "            if job.is_given_up:\n                self._waiting.discard",
        "            if False:\n                self._waiting.discard",
    ),
    Fault(
        "audio at which the process dies is forgotten",
        _SPEECH,
        "        self._link.call(job.settle, EngineFailed(reason))",
        "        pass",
    ),
    Fault(
        "the process of speech is not stopped after a slice",
        _SPEECH,
        "                    self._signal(is_stopped=True)",
        "                    pass",
    ),
    Fault(
        "each window of an audio detects its language",
        _SPEECH,
        "            self.params = replace(params, language=found.language or None",
        "            self.params = replace(params",
    ),
    Fault(
        "windows of an audio continue its prompt",
        _SPEECH,
        'language=found.language or None, prompt="")',
        "language=found.language or None)",
    ),
    Fault(
        "a listener stops where accepting fails",
        _LISTENERS,
        "        self._loop.call_later(_PAUSE, self._resume, listening)",
        "        pass",
    ),
    Fault(
        "a statistic that fails ends the server",
        _WATCH,
        "            except Exception:  # a statistic",
        "            except ZeroDivisionError:  # a statistic",
    ),
    Fault(
        "stored data expire by a clock that is wrong for a moment",
        _CLOCK,
        "        if _is_near(offset, self._offset):",
        "        if True:",
    ),
    *(
        Fault(*fault, program="tests.state.postgres")
        for fault in (
            (
                "events are added without a check of the owner",
                _RUNNING,
                "        key = self._key_of_own(tenant, id)\n        if key is None:\n"
                "            return False\n        data,",
                "        key = self._key_for_change(tenant, id)\n        if key is None:\n"
                "            return False\n        data,",
            ),
            (
                "a response is finished without a check of the owner",
                _OPERATIONS,
                "if self._key_of_own(tenant, response.id) is None:",
                "if self._key_for_change(tenant, response.id) is None:",
            ),
            (
                "a lease that was renewed in the meantime is taken over",
                _RUNNING,
                '            "WHERE object = ? AND lease_until < unix_time() "\n'
                '            "RETURNING cancel',
                '            "WHERE object = ? "\n            "RETURNING cancel',
            ),
            (
                "a response whose lease was just renewed is interrupted",
                _RUNNING,
                "DELETE FROM runs WHERE object = ? AND lease_until < unix_time() RETURNING",
                "DELETE FROM runs WHERE object = ? RETURNING",
            ),
            (
                "the expired lease of another replica is renewed",
                _RUNNING,
                "SET lease_until = unix_time() + ? WHERE owner = ? RETURNING",
                "SET lease_until = unix_time() + ? "
                "WHERE owner = ? OR lease_until < unix_time() RETURNING",
            ),
            (
                "a commit of unknown outcome is repeated",
                _POSTGRES,
                "            raise CommitUnknown(",
                "            raise ConnectionLost(",
            ),
            (
                "a commit of unknown outcome counts as done",
                _POSTGRES,
                "            raise CommitUnknown(",
                "            return\n            raise CommitUnknown(",
            ),
            (
                "a lost connection is kept",
                _POSTGRES,
                "            if session.is_lost:\n                self._disconnect()\n",
                "            if session.is_lost:\n",
            ),
            (
                "no reconnection is attempted",
                _POSTGRES,
                "        if self.seconds_left() or not",
                "        if True or not",
            ),
        )
    ),
)


class Found(NamedTuple):
    """How a fault was found: the number of worlds and of CPU seconds; None = it was not."""

    fault: Fault
    num_seeds: int | None
    seconds: float
    kind: str


def find(fault: Fault, seconds: float) -> Found:
    """Runs worlds with a fault until one fails."""
    command = [sys.executable, "-m", fault.program, "--seeds", "1000000"]
    command += ["--fault", fault.name, "--seconds", f"{seconds:g}"]
    if fault.program == "tests.simulation":
        command += ["--no-shrink", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    taken = re.search(r" in ([\d.]+) s of CPU", done.stdout)
    seconds = float(taken[1]) if taken else 0.0
    found = re.search(r"^seed (\d+) fails:\n  (\w+):", done.stdout, re.MULTILINE)
    if found is None:
        kind = "" if "worlds" in done.stdout else done.stderr.strip().splitlines()[-1][:80]
        return Found(fault, None, seconds, kind)
    return Found(fault, int(found[1]) + 1, seconds, found[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the faults' names; none = all")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="of CPU for each fault, at most"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", type=Path, help="where to write the table")
    arguments = parser.parse_args()
    names = arguments.names
    chosen = [f for f in FAULTS if not names or any(name in f.name for name in names)]
    rows = ["| fault | worlds | seconds | seen as |", "|---|---|---|---|"]
    num_found = 0
    with ThreadPoolExecutor(arguments.jobs) as executor:
        for found in executor.map(lambda fault: find(fault, arguments.seconds), chosen):
            seeds = "not found" if found.num_seeds is None else str(found.num_seeds)
            num_found += found.num_seeds is not None
            rows.append(f"| {found.fault.name} | {seeds} | {found.seconds:.1f} | {found.kind} |")
            print(rows[-1], flush=True)
    print(f"{num_found} of {len(chosen)} found")
    if arguments.table is not None:
        arguments.table.write_text("\n".join(rows) + "\n")
    return 0 if num_found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
