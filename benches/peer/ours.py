"""Dataplane's side of a comparison: a pipeline that the program runs."""

import json
import subprocess

from measure import REPO, fail

TIMEOUT_S = 60


class Pipeline:
    """A config with its overrides: the cores of the workers, and the burst unless `burst` is None. Each measurement is a separate run."""

    def __init__(self, program, config, cores, burst, sets=()):
        self.command = [program, "run", str(REPO / config), "--report", "json"]
        workers = ", ".join(map(str, cores))
        burst = () if burst is None else (f"runtime.burst={burst}",)
        for entry in (f"runtime.workers=[{workers}]", *burst, "runtime.hugepages=2M", *sets):
            self.command += ["--set", entry]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def measure(self, seconds):
        """Returns the rate in millions of packets per second."""
        return round(self.run("--for", f"{round(seconds * 1000)}ms")["rate_mpps"], 3)

    def run(self, *until):
        """Returns the report of a run. The ledger must balance, and no packet may be dropped."""
        command = [*self.command, *until]
        done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode != 0:
            fail(f"{' '.join(command)} exited with status {done.returncode}:\n{done.stderr}")
        report = json.loads(done.stdout)
        if report["ledger"]["unaccounted"] != 0 or report["ledger"]["dropped"] != 0:
            fail(f"{' '.join(command)}: the ledger does not balance, or packets were dropped: {report['ledger']}")
        return report
