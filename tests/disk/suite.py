"""suite.py BINARY SCRATCH [NAME...]: runs the cases, or those whose names contain one of the NAMEs.

Many at once: most of their time they wait for the store to try again. Ends with the line
'N passed, N failed'; a case that failed shows its proxies' logs and its folder.
"""

import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import faults
import filesystems
from harness import Case, World

AT_ONCE = 12


def run(world, name, act):
    """Whether the case passed, and what there is to say about it."""
    began = time.monotonic()
    case = Case(world, name)
    try:
        act(case)
        outcome, said = True, "ok"
    except Exception:
        outcome, said = False, "FAILED\n" + traceback.format_exc() + case.evidence()
    finally:
        case.end()
    return outcome, f"{time.monotonic() - began:5.1f} s  {name}: {said}"


def learn(world, name, act):
    case = Case(world, name)
    try:
        return act(case)
    except Exception:
        sys.stderr.write(case.evidence())
        raise
    finally:
        case.end()


def main():
    os.umask(0o022)  # an ordinary user has to get at its own folders
    world = World(Path(sys.argv[1]), Path(sys.argv[2]))
    wanted = sys.argv[3:]
    cases = {**filesystems.cases(), **faults.cases(partial(learn, world))}
    cases = {name: act for name, act in cases.items()
             if not wanted or any(part in name for part in wanted)}
    passed = failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome, said in pool.map(lambda item: run(world, *item), cases.items()):
            print(said, flush=True)
            passed, failed = passed + outcome, failed + (not outcome)
    print(f"{passed} passed, {failed} failed")
    sys.exit(0 if passed and not failed else 1)


main()
