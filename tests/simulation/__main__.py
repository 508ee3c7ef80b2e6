"""python -m tests.simulation --seeds N: runs N worlds, and prints commands that replay those that
fail."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time as real_time
import traceback

from tests.simulation.install import install_clocks, install_threads, plant
from tests.simulation.planted import FAULTS
from tests.simulation.several import Totals, num_jobs, run_several

_clock = real_time.process_time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--these", help="the seeds to run in place of a range, such as 7,12")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="how many processes run many worlds"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="CPU seconds of a process at most"
    )
    parser.add_argument("--only", help="the numbers of the actions to run, such as 1,5")
    parser.add_argument(
        "--having", default="", help="a text that the settings or one of the events must have"
    )
    parser.add_argument("--trace", action="store_true", help="show all that happens")
    parser.add_argument("--hash", action="store_true", help="show each world's hash")
    parser.add_argument("--failures", type=int, default=1, help="end after so many failures")
    parser.add_argument("--no-shrink", action="store_true", help="show failures as they are")
    parser.add_argument("--fault", help="the name of a fault of `planted` to plant")
    arguments = parser.parse_args()
    jobs = num_jobs(arguments.jobs, arguments.seeds)
    run = run_one_by_one if jobs == 1 else run_several
    totals = run(arguments)
    print(totals)
    return 1 if totals.num_failed else 0


def run_one_by_one(arguments: argparse.Namespace) -> Totals:
    """Runs the worlds in this process, until an interrupt."""
    install_clocks()
    for fault in FAULTS:
        if fault.name == arguments.fault:
            plant(fault.module, fault.old, fault.new)
    from fastovms.engine.row_functions import load_kernels
    from fastovms.parts.drafts.suffix_index import SuffixFunctions
    from tests.simulation import disk, server, simulate

    install_threads()
    server.install_server()
    disk.install_disk()
    load_kernels()
    SuffixFunctions().load()
    gc.collect()
    gc.freeze()  # what is loaded by now is not looked through at the end of each world
    interrupts: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        if interrupts:
            os._exit(130)
        interrupts.append(number)  # the world ends in order

    signal.signal(signal.SIGINT, interrupt)
    start = _clock()
    totals = Totals()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    for seed in map(int, arguments.these.split(",")) if arguments.these else seeds:
        if interrupts or _clock() - start > arguments.seconds:
            break
        scenario = simulate.make_scenario(seed)
        described = (scenario.settings.described(), *map(str, scenario.events))
        if not any(arguments.having in text for text in described):
            continue
        if arguments.only:
            scenario = scenario.only({int(number) for number in arguments.only.split(",")})
        outcome = simulate.simulate(scenario, record=arguments.trace)
        has_failed = bool(outcome.failures)
        totals += Totals(
            1, outcome.num_answers, outcome.num_switches, outcome.seconds - 1000, 0.0, has_failed
        )
        if arguments.trace:
            print("\n".join(outcome.lines))
        if arguments.hash:
            print(seed, outcome.trace, flush=True)
        if has_failed:
            if not arguments.no_shrink and not arguments.only:
                scenario = simulate.shrink(scenario, outcome)
                outcome = simulate.simulate(scenario)
            tell(scenario, outcome)
            if totals.num_failed >= arguments.failures:
                break
    return totals._replace(cpu_seconds=_clock() - start)


def tell(scenario, outcome) -> None:  # type: ignore[no-untyped-def]
    numbers = ",".join(map(str, sorted(scenario.numbers)))
    print(f"seed {scenario.seed} fails:")
    for kind, text in outcome.failures[:5]:
        print(f"  {kind}: {text[:600]}")
    print(f"  settings: {scenario.settings.described()}, ends by {scenario.ends_by}")
    for event in scenario.events:
        print(f"  {event}")
    command = f"python -m tests.simulation --first {scenario.seed} --only {numbers} --trace"
    print(f"replay: {command}", flush=True)


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    # Not after the ends of tasks whose processes were killed, nor after that of the simulated disk,
    # which crashes where a connection is still open.
    os._exit(code)
