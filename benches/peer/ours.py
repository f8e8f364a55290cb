"""This project's side: a pipeline, run by the program."""

import json
import subprocess

from measure import REPO, fail

TIMEOUT_S = 60


class Pipeline:
    """A config on its own core or cores, with a burst or that of the config. Each measurement is a run of its own."""

    def __init__(self, program, config, cores, burst, sets=()):
        self.command = [program, "run", str(REPO / config), "--report", "json"]
        workers = ", ".join(map(str, cores))
        own = () if burst is None else (f"runtime.burst={burst}",)
        for entry in (f"runtime.workers=[{workers}]", *own, "runtime.hugepages=2M", *sets):
            self.command += ["--set", entry]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def measure(self, seconds):
        """Packets a second, in millions."""
        return round(self.run("--for", f"{round(seconds * 1000)}ms")["rate_mpps"], 3)

    def run(self, *until):
        """The report of a run; the ledger must balance."""
        command = [*self.command, *until]
        done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode != 0:
            fail(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr}")
        report = json.loads(done.stdout)
        if report["ledger"]["unaccounted"] != 0 or report["ledger"]["dropped"] != 0:
            fail(f"{' '.join(command)}: the ledger does not balance, or packets were dropped: {report['ledger']}")
        return report
