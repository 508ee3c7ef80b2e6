"""Faults to plant, one at a time, to see whether the simulation finds them.

python -m tests.simulation.planted [NAME...] [--seconds 300] [--jobs 2] [--table FILE]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple


class Fault(NamedTuple):
    """A text of a module that is replaced by another one.

    Attributes:
        program: the module whose worlds are to find it.
    """

    name: str
    module: str
    old: str
    new: str
    program: str


_Texts = Mapping[str, Mapping[str, str | tuple[str, str]]]
"""By module and name of the fault: a statement that is left out, or a text and what replaces it."""

_FAULTS: Final[_Texts] = {
    "backends.paged.backend": {
        "the engine is not told of an abort": "self._commands.put(Abort(request_id, index))",
        "a permit is lost where a step has no output": (
            "self._undelivered.release()",
            "if step.outputs:\n            self._undelivered.release()",
        ),
        "closing does not end the engine's thread": "self._commands.put(Close())",
        "an engine that fails ends no request": (
            "self._requests.end_all(FinishReason.ERROR, reason)",
            "pass",
        ),
    },
    "api.generate": {
        "a generation that is left is not aborted": (
            "if self._num_unfinished:\n            for request",
            "if False:\n            for request",
        ),
        "tokens behind a stop string count": "num_tokens = delta.num_tokens",
        "a stop string does not end its sample in the engine": (
            "self._backend.abort(self._requests[position].request_id, output.index)",
            "pass",
        ),
    },
    "engine.model.model": {
        "kernels that come into use have a cache of their own": (
            "for runner in runners.values():\n            runner.set_tensors(self._cache.tensors)",
            "for runner in runners.values():\n            runner.set_tensors("
            "HostCache(self._cache_inputs, self._spare_block).tensors)",
        ),
        "a model that is compiled later keeps the cache of its warm-up": (
            ".in_pages(self._num_pages))\n        runner.set_tensors(self._cache.tensors)",
            ".in_pages(self._num_pages))",
        ),
    },
    "backends.engine_thread": {
        "the engine waits for commands while it has work": (
            "receive(not engine.has_work)",
            "receive(True)",
        ),
        "a request whose samples are all aborted is kept": (
            "if index is None or not request.unfinished:",
            "if index is None:",
        ),
        "waiting samples are counted as one": (
            "self._num_submitted += request.params.n",
            "self._num_submitted += 1",
        ),
        "a slice does not wait for steps": (
            "is_free = not self._is_slicing and not self._num_stepping",
            "is_free = not self._is_slicing",
        ),
        "an encoder waits for a slice without being noticed": (
            "while self._is_slicing or (self._waiting and self._is_due):",
            "while self._is_slicing:",
        ),
        "an encoder computes before others that came earlier": (
            "is_free and self._is_due and self._waiting[0] is ticket",
            "is_free and self._is_due",
        ),
    },
    "engine.blocks": {
        "the first block of a table is not freed": (
            "in reversed(block_table):",
            "in reversed(block_table[1:]):",
        ),
        "a shared block has one reference": (
            "self._ref_counts[block_id] += 1",
            "self._ref_counts[block_id] = 1",
        ),
        "a prompt is found in the cache to its last token": (
            "(len(token_ids) - 1) // size",
            "len(token_ids) // size",
        ),
        "the key of a cached block lacks its parent": (
            "return parent_node, tokens + salt",
            "return ROOT, tokens + salt",
        ),
        "an evicted block is still found": (
            "del self._entries[self._keys.pop(block_id)]",
            "self._keys.pop(block_id)",
        ),
        "a block that two read is written to": (
            "return self._ref_counts[block_id] > 1",
            "return self._ref_counts[block_id] > 2",
        ),
        "the key of a cached block lacks its salt": (
            "tokens + salt if parent_node in _ROOTS else tokens",
            "tokens",
        ),
        "a tenant learns of another one's cached prompts": (
            "(not tenant or tenant in self._tenants.get(entry.block_id, ()))",
            "True",
        ),
    },
    "engine.scheduler": {
        "a block is registered before it is computed": (
            "range(sequence.num_registered_blocks, sequence.num_computed_tokens // size)",
            "range(sequence.num_registered_blocks, sequence.num_tokens // size)",
        ),
        "a forked block is not copied": "plan.block_copies.append(BlockCopy(source, target))",
        "drafts count as computed": (
            "sequence.num_computed_tokens = min(end, sequence.num_tokens)",
            "sequence.num_computed_tokens = end",
        ),
        "a preempted sequence counts as computed": (
            "sequence.num_computed_tokens = 0\n        sequence.num_registered_blocks = 0",
            "sequence.num_registered_blocks = 0",
        ),
        "a sequence that stops still counts as running": (
            "self.waiting.note_running(sequence.owner, -1)",
            "pass",
        ),
        "one sequence too many runs": (
            "if num_seqs + num_new > self.max_num_seqs:",
            "if num_seqs + num_new > self.max_num_seqs + 1:",
        ),
    },
    "engine.engine": {
        "drafts are accepted unseen": (
            "index == num_drafts or token_id != drafts[index]",
            "index == num_drafts",
        ),
    },
    "engine.sampler": {
        "all samples draw with one seed": (
            "np.random.SeedSequence((seed % 2**64, index))",
            "np.random.SeedSequence((seed % 2**64, 0))",
        ),
        "the rows of a draft are drawn at one place": (
            "rows.add(index, sequence, num_tokens + index - start)",
            "rows.add(index, sequence, num_tokens)",
        ),
    },
    "text.stop": {
        "tokens count whose text was held back behind a stop string": (
            "self._num_before + bisect_left(self._starts, self.end)",
            "self._num_before + len(self._starts)",
        ),
    },
    "text.detokenizer": {
        "half a character is sent": (
            "text, self._incomplete = decode_utf8(data, final=False)\n        if begin",
            "text, self._incomplete = decode_utf8(data, final=True)\n        if begin",
        ),
    },
    "http.protocol": {
        "a disconnect cancels no handler": "if task is not None:\n            task.cancel()",
        "the memory of a body is not given back": (
            "assert request is not None\n        server.give_back_body(request)",
            "assert request is not None",
        ),
        "a lost connection stays registered": "self._server.remove(self)",
        "an ended handler stays registered": "self._server.tasks.discard(task)",
        "a reader that catches up gets nothing more": "stream.on_writable()",
        "a pipelined request is forgotten": (
            "self._respond(response)\n        self._begin_next()",
            "self._respond(response)",
        ),
    },
    "http.writers": {
        "requests wait at a turnstile that stays shut": (
            "self._start_pass()\n        while self._waiting:",
            "while False:",
        ),
        "an answer is written in two chunks with one length": (
            'data = b"%x\\r\\n%b\\r\\n0\\r\\n\\r\\n" % (len(data), data)',
            'data = b"%x\\r\\n%b\\r\\n\\r\\n" % (len(data), data)',
        ),
    },
    "state.sqlite.database": {
        "a commit is not synced": ('"PRAGMA synchronous = FULL"', '"PRAGMA synchronous = OFF"'),
    },
    "parts.responses.create": {
        "a response is acknowledged before it is stored": "await background.accepted()",
    },
    "parts.responses.events": {
        "events are told before they are stored": (
            "self._unsent += frames\n        if self._has_ended:",
            "self._unsent += frames\n        if True:",
        ),
        "events are stored without what they were made of": (
            "packed = pack_outputs(outputs) if outputs else None",
            "packed = None",
        ),
        "the numbers of stored events have a gap": (
            "self._num_kept += len(frames)",
            "self._num_kept += len(frames) + (len(frames) > 3)",
        ),
        "a replay stops where more was logged meanwhile": (
            "loop.call_soon(send)  # let other connections send first",
            "pass",
        ),
        "a reader of a log is not forgotten": "log.forget(stream)",
    },
    "parts.responses.background": {
        "what was told before a restart is told again": (
            "self._run.skip_events(self.log.num_events)",
            "pass",
        ),
        "a place in the background is not given back": "self._places.give_back(run.owner)",
    },
    "parts.responses.resumption": {
        "responses are not resumed": ("MAX_ATTEMPTS: Final = 3", "MAX_ATTEMPTS: Final = 0"),
        "a queued response is resumed with what was said after it was accepted": (
            "fields, model.info, cut.input, job.items,",
            "fields, model.info, cut.input, None,",
        ),
        "a resumed response has no key": (
            "caller = Caller(tenant=key.tenant,",
            'caller = Caller(tenant="",',
        ),
    },
    "api.context": {
        "a request has no key": (
            "caller=request.caller,",
            'caller=type(request.caller)(tenant=""),',
        ),
    },
    "parts.batches.runner": {
        "a line of a batch has no key": (
            "Caller(tenant=tenant, priority",
            'Caller(tenant="", priority',
        ),
        "a batch is found by every tenant": (
            "return self._records.find(tenant, id)",
            "return self._records.known.get(id)",
        ),
        "lines of a batch that are done run again after a restart": (
            "if not self._log.is_done(found[0]))",
            "if True)",
        ),
        "the slot of a line is not given back": (
            "task.add_done_callback(lambda task: slot.give_back())",
            "pass",
        ),
        "a cancelled batch does not write the lines that did not run": (
            "await runner.skip_rest(_CODES[record.outcome])",
            "pass",
        ),
        "the batches of a key that returns stay paused": (
            "elif record.id not in self._runs:\n                self._drive(record)",
            "else:\n                pass",
        ),
    },
    "parts.responses.socket": {
        "a message over a WebSocket has no key": (
            "request.caller, request.trace = outer.caller, outer.trace",
            "request.trace = outer.trace",
        ),
        "responses of one WebSocket run at once": (
            "if self._running is None and self._pending:",
            "if self._pending:",
        ),
        "a WebSocket forgets what it did not store": (
            "self._id, self._items, self._size = id, items, size",
            "self._size = size",
        ),
        "messages that wait for a turn keep their memory": (
            "            for turn in self._pending:\n"
            "                self._socket.give_back(len(turn.message))\n",
            "",
        ),
        "the memory of a WebSocket message is given back before its turn ends": (
            "request.turn = turn",
            "request.turn = turn\n"
            '        self._socket.give_back(len(turn.message))\n        turn.message = b""',
        ),
        "a connection that ends keeps the memory of its history": (
            "self._unstored.clear()\n            for task",
            "for task",
        ),
    },
    "state.operations": {
        "a stored response lacks its output": (
            "(ItemOrigin.OUTPUT, response.output)]",
            "(ItemOrigin.OUTPUT, ())]",
        ),
        "a turn does not see the one before the last": (
            "chain = self._tables.chain(tenant, id, MAX_CHAIN - 1)",
            "chain = self._tables.chain(tenant, id, MAX_CHAIN - 1)[:1]",
        ),
    },
    "state.state_store": {
        "the state's thread is not woken": (
            "self._jobs.append(_QueuedOperation(operation, future))\n"
            "            self._changed.notify()",
            "self._jobs.append(_QueuedOperation(operation, future))",
        ),
    },
    "state.store": {
        "a watch is not ended": "self._watches[topic].discard(watch)",
    },
    "state.tables": {
        "a response is found by every tenant": (
            "{columns} FROM objects WHERE tenant = ? AND",
            "{columns} FROM objects WHERE tenant IS NOT CAST(? AS BLOB) AND",
        ),
    },
    "parts.batches.store": {
        "a file is found by every tenant": (
            "record = self._records.find(tenant, id)",
            "record = self._records.known.get(id)",
        ),
    },
    "http.websocket": {
        "messages that wait for a WebSocket keep their memory": (
            "        self.give_back(self._num_begun + sum(map(len, self._messages)))\n",
            "",
        ),
        "the memory of a WebSocket message is not counted": (
            "if not self._budget.take(self._sender, len(piece)):",
            "self.give_back = lambda size: None\n        if False:",
        ),
        "frames that wait for their turn are forgotten": "self._limiter.wait(self._handle_frames)",
    },
    "parts.prefix_cache.directory": {
        "a damaged block on disk is used": ("if found != checksum:", "if False:"),
        "the key of a block on disk lacks its tenant": (
            "tenant = namespace.tenant.encode()",
            'tenant = b""',
        ),
        "the key of a block on disk lacks the blocks before it": (
            "yield digest.digest()",
            "yield hashlib.sha256(tokens[end - size : end]).digest()",
        ),
    },
    "grammar.compiler": {
        "samples of one grammar share its state": (
            "compiled.matcher.deep_copy(),",
            "compiled.matcher,",
        ),
    },
    "grammar.state": {
        "a grammar reads tokens twice": (
            "self._num_read = len(token_ids)",
            "self._num_read = len(token_ids) - (len(token_ids) % 16 == 0)",
        ),
    },
    "service.lifecycle": {
        "keys are not read again": (
            'stay in use."""\n        self._keys = self._read_keys()',
            'stay in use."""',
        ),
        "keys that cannot be read let everybody in": (
            "keys = read_api_keys(",
            "try:\n            self._read_keys_of = read_api_keys(\n                "
            "self._config.api_key_file, self._environ, self._config.api_keys)\n"
            "        except ConfigurationError:\n"
            "            return None\n        keys = read_api_keys(",
        ),
        "the file of the list of models is looked at once": (
            "self.start(loop)\n        stamp",
            "stamp",
        ),
    },
    "app.serve": {
        "the requests of a removed key run on": (
            'server.cut(lambda request: request.caller.tenant not in tenants | {""})',
            "0",
        ),
        "the requests of all keys are cut when one is removed": (
            'server.cut(lambda request: request.caller.tenant not in tenants | {""})',
            'server.cut(lambda request: request.caller.tenant != "")',
        ),
    },
    "parts.responses.service": {
        "the background responses of all keys are cancelled at a reload": (
            "self._runs.cancel_all(tenants)",
            "self._runs.cancel_all(frozenset())",
        ),
    },
    "app.supply": {
        "a list of models that changes while models load is not read": (
            "if self._is_outdated:\n            self.reload_soon()",
            "pass",
        ),
    },
    "parts.several_models.model_pool": {
        "a removed model stays in memory": (
            "self._residency.remove(name)\n            self._loaded",
            "self._loaded",
        ),
        "a model that cannot be loaded any more is gone": (
            "if former is None or former.config",
            "if True or former.config",
        ),
        "a request that waits for a removed model is forgotten": (
            "self._waiters.refuse(name, BackendUnavailable(",
            "_ = (name, BackendUnavailable(",
        ),
    },
    "parts.several_models.residency": {
        "a removed model is unloaded under its requests": (
            "self.leaves and self.state is ModelState.AVAILABLE and not self.num_uses",
            "self.leaves and self.state is ModelState.AVAILABLE",
        ),
        "a model whose settings have changed is not loaded again": (
            "model.retry_at = 0, 0.0\n        model.leaves = not model.uses_no_memory",
            "model.retry_at = 0, 0.0",
        ),
        "a model that was broken waits to be tried again when it is mended": (
            "model.num_failures, model.retry_at = 0, 0.0\n        model.leaves",
            "model.leaves",
        ),
        "a model that returns while it leaves is removed": (
            "            self._models[name].is_removed = False\n",
            "",
        ),
    },
    "http.listeners": {
        "a certificate is not read again": (
            "without a usable key\n        self._load(self.context)",
            "without a usable key",
        ),
        "a key that cannot be read spoils the certificate in use": (
            "self._new_context()  # a failed",
            "# a failed",
        ),
        "a handshake that fails still counts": (
            "self._beginning.pop(task, None)\n        if task.cancelled():",
            "if task.cancelled():",
        ),
        "a handshake may take for ever": (
            '"ssl_handshake_timeout": HANDSHAKE_TIMEOUT',
            '"ssl_handshake_timeout": 1e6',
        ),
        "a listener stops where accepting fails": (
            "self._loop.call_later(_PAUSE, self._resume, listening)",
            "pass",
        ),
    },
    "backends.job_thread": {
        "texts are encoded that nobody waits for": "job.is_given_up = True",
        "an encoder that fails ends no request": "self._end_all(EngineFailed(reason))",
        "closing does not end an encoder's thread": "self._commands.put(None)",
    },
    "parts.embeddings.encoder_backend": {
        "a request for vectors ends with the first batch of its texts": (
            "if not job.num_left:",
            "if True:",
        ),
        "rows are returned in the order in which they are computed": (
            "job.rows[index] = row",
            "job.rows[-job.num_left] = row",
        ),
        "an encoder that is gone still takes turns": "self._turn.remove_encoder()",
        "texts of a batch that has ended count as running": "self._num_running = 0",
        "vectors that are not numbers are answered": (
            "if not np.isfinite(self.rows).all():",
            "if False:",
        ),
        "tokens that were encoded are not counted": "self._counters.num_prompt_tokens += length",
        "texts of batches are encoded first": (
            "first = min(self._jobs, key=itemgetter(0))",
            "first = max(self._jobs, key=itemgetter(0))",
        ),
    },
    "parts.embeddings.rerank": {
        "the last part of a document decides its score": (
            "np.maximum.at(scores, owners, _relevance(rows, "
            "uses_activation=options.uses_activation))",
            "scores[owners] = _relevance(rows, uses_activation=options.uses_activation)",
        ),
    },
    "api.body": {
        "texts that wait to be tokenized are forgotten": (
            "job.done.set_result(work.result())\n        self._begin_next()",
            "job.done.set_result(work.result())",
        ),
    },
    "backends.sliced_process": {
        "audio that nobody waits for keeps its place": (
            "if job.is_given_up:\n                self._waiting.discard",
            "if False:\n                self._waiting.discard",
        ),
        "audio at which the process dies is forgotten": (
            "self._link.call(job.settle, EngineFailed(reason))",
            "pass",
        ),
        "the process of speech is not stopped after a slice": "self._signal(is_stopped=True)",
    },
    "parts.speech.speech_backend": {
        "each window of an audio detects its language": (
            "self.params = replace(params, language=found.language or None",
            "self.params = replace(params",
        ),
        "windows of an audio continue its prompt": (
            'prompt = params.prompt if self.keeps_prompt else ""',
            "prompt = params.prompt",
        ),
    },
    "service.watch": {
        "a statistic that fails ends the server": (
            "except Exception:  # statistics or the service manager failed, not an engine",
            "except ZeroDivisionError:",
        ),
    },
    "system.clock": {
        "stored data expire by a clock that is wrong for a moment": (
            "if _is_near(offset, self._offset):",
            "if True:",
        ),
    },
}

_FAULTS_OF_POSTGRES: Final[_Texts] = {
    "state.running_responses": {
        "events are added without a check of the owner": (
            "key = self._key_of_own(tenant, id)\n        if key is None:\n"
            "            return False\n        data,",
            "key = self._key_for_change(tenant, id)\n        if key is None:\n"
            "            return False\n        data,",
        ),
        "a lease that was renewed in the meantime is taken over": (
            '"WHERE object = ? AND lease_until < unix_time() "\n            "RETURNING cancel',
            '"WHERE object = ? "\n            "RETURNING cancel',
        ),
        "a response whose lease was just renewed is interrupted": (
            "DELETE FROM runs WHERE object = ? AND lease_until < unix_time() RETURNING",
            "DELETE FROM runs WHERE object = ? RETURNING",
        ),
        "the expired lease of another replica is renewed": (
            "SET lease_until = unix_time() + ? WHERE owner = ? RETURNING",
            "SET lease_until = unix_time() + ? WHERE owner = ? OR lease_until < "
            "unix_time() RETURNING",
        ),
    },
    "state.operations": {
        "a response is finished without a check of the owner": (
            "if self._key_of_own(tenant, response.id) is None:",
            "if self._key_for_change(tenant, response.id) is None:",
        ),
    },
    "parts.postgres.database": {
        "a commit of unknown outcome is repeated": (
            "raise CommitUnknown(",
            "raise ConnectionLost(",
        ),
        "a commit of unknown outcome counts as done": (
            "raise CommitUnknown(",
            "return\n            raise CommitUnknown(",
        ),
        "a lost connection is kept": (
            "if session.is_lost:\n                self._disconnect()",
            "if session.is_lost:",
        ),
        "no reconnection is attempted": ("if self.seconds_left() or not", "if True or not"),
    },
}


def _faults(texts: _Texts, program: str) -> Iterator[Fault]:
    for module, of_module in texts.items():
        for name, text in of_module.items():
            old, new = (text, "pass") if isinstance(text, str) else text
            yield Fault(name, f"fastovms.{module}", old, new, program)


FAULTS: Final = (
    *_faults(_FAULTS, "tests.simulation"),
    *_faults(_FAULTS_OF_POSTGRES, "tests.state.postgres"),
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
