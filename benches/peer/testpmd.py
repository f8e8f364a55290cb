"""Runs DPDK's testpmd: one process per round of a case. Commands start and stop the forwarding."""

import re
import time

from peer.process import Program

READY = re.compile(r"^Done$")
STOPPED = re.compile(r"^Done\.$")
RATE = re.compile(r"Tx-pps:\s*(\d+)")
SENT = re.compile(r"TX-packets:\s*(\d+)")
# The memory for testpmd's 155,456 buffers, in MiB.
MEMORY_MIB = 512
WARM_UP_S = 0.2
# The lcore of the command line. 127 is the largest lcore number that testpmd supports.
MAIN = 127


class Testpmd:
    """A testpmd process that forwards in one mode on one device. `main_core` runs the command line, `cores` forward packets."""

    def __init__(self, program, device, mode, main_core, cores, burst, setup=(), more=()):
        """`setup`: commands before the first start. `more`: further command-line options."""
        # The command line needs its own lcore, which may share a core with a forwarding lcore.
        lcores = ",".join([f"{MAIN}@{main_core}", *(f"{core}@{core}" for core in cores)])
        self.setup = setup
        self.command = [program, f"--lcores={lcores}", f"--main-lcore={MAIN}", "--no-pci", "--no-telemetry", "--in-memory"]
        self.command += ["-m", MEMORY_MIB, f"--vdev={device}", "--", "-i", f"--nb-cores={len(cores)}"]
        # `--no-flush-rx`: also forward the packets that arrived before the start.
        self.command += [f"--forward-mode={mode}", "--port-topology=loop", f"--burst={burst}", "--no-flush-rx", *more]

    def __enter__(self):
        self.program = Program(self.command)
        self.program.wait_for(READY)
        for command in self.setup:
            self.program.write_line(command)
        return self

    def __exit__(self, failed, *_):
        self.program.close(failed)

    def measure(self, seconds):
        """Returns the rate in millions of packets per second, as computed by testpmd between two queries."""
        self.program.write_line("start")
        time.sleep(WARM_UP_S)
        self.program.write_line("show port stats all")
        self.program.wait_for(RATE)
        time.sleep(seconds)
        self.program.write_line("show port stats all")
        rate = int(self.program.wait_for(RATE)[1]) / 1e6
        self.program.write_line("stop")
        self.program.wait_for(STOPPED)
        return round(rate, 3)

    def send(self, packets):
        """Forwards until the number of packets is sent."""
        self.program.write_line("start")
        deadline = time.monotonic() + 30
        while True:
            self.program.write_line("show port stats all")
            if int(self.program.wait_for(SENT)[1]) >= packets:
                break
            if time.monotonic() > deadline:
                self.program.failed(f"testpmd did not send {packets} packets within 30 s")
            time.sleep(0.05)
        self.program.write_line("stop")
        self.program.wait_for(STOPPED)
