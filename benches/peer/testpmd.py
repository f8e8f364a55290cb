"""DPDK's testpmd: one process for a case, started and stopped by its own commands."""

import re
import time

from peer.process import Program

READY = re.compile(r"^Done$")
STOPPED = re.compile(r"^Done\.$")
RATE = re.compile(r"Tx-pps:\s*(\d+)")
SENT = re.compile(r"TX-packets:\s*(\d+)")
# What it needs for its 155,456 buffers, in MiB.
MEMORY_MIB = 512
WARM_UP_S = 0.2
# The number of its thread for commands: the greatest it knows.
MAIN = 127


class Testpmd:
    """A device, a way of forwarding, and the cores that forward; commands are given on the first allowed core."""

    def __init__(self, program, device, mode, main_core, cores, burst, orders=(), more=()):
        # Its command line has a thread of its own, beside the first forwarding core where there are no more.
        lcores = ",".join([f"{MAIN}@{main_core}", *(f"{core}@{core}" for core in cores)])
        self.orders = orders
        self.command = [program, f"--lcores={lcores}", f"--main-lcore={MAIN}", "--no-pci", "--no-telemetry", "--in-memory"]
        self.command += ["-m", MEMORY_MIB, f"--vdev={device}", "--", "-i", f"--nb-cores={len(cores)}"]
        # What waits before it begins is forwarded too.
        self.command += [f"--forward-mode={mode}", "--port-topology=loop", f"--burst={burst}", "--no-flush-rx", *more]

    def __enter__(self):
        self.program = Program(self.command)
        self.program.until(READY)
        for order in self.orders:
            self.program.say(order)
        return self

    def __exit__(self, failed, *_):
        self.program.leave(failed)

    def measure(self, seconds):
        """Packets a second, in millions: testpmd's own figure for the time between two questions."""
        self.program.say("start")
        time.sleep(WARM_UP_S)
        self.program.say("show port stats all")
        self.program.until(RATE)
        time.sleep(seconds)
        self.program.say("show port stats all")
        rate = int(self.program.until(RATE)[1]) / 1e6
        self.program.say("stop")
        self.program.until(STOPPED)
        return round(rate, 3)

    def send(self, packets):
        """Forwards until so many are sent."""
        self.program.say("start")
        deadline = time.monotonic() + 30
        while True:
            self.program.say("show port stats all")
            if int(self.program.until(SENT)[1]) >= packets:
                break
            if time.monotonic() > deadline:
                self.program.failed(f"it did not send {packets} packets in 30 s")
            time.sleep(0.05)
        self.program.say("stop")
        self.program.until(STOPPED)
