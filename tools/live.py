"""Shared parts of the live tests: processes that end with the test, hosts in network namespaces, and the program that connects the
hosts over each kind of link. At the end of a test, also after a failure, all processes and namespaces are removed.

A test script defines functions `case_NAME(network)`, and ends with `sys.exit(live.main(__doc__, globals(), TOOLS))`.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

REPO = pathlib.Path(__file__).resolve().parents[1]
KINDS = ["packet", "tap", "xdp"]
TOOLS = ["ip", "ethtool", "bridge", "ping", "sysctl"]
# The timeout of every wait, in seconds. A passing test waits much less.
TIMEOUT = 60
# The interfaces of the program, one for each host.
INTERFACES = ("left", "right", "third")
LOSSES = {
    "rx_missed",
    "rx_out_of_buffer",
    "rx_too_long",
    "rx_gso_too_long",
    "tx_queue_full",
    "tx_refused",
    "kernel_rx_dropped",
    "kernel_rx_ring_full",
}
A4, B4, A6, B6 = "10.77.0.1", "10.77.0.2", "fd77::1", "fd77::2"


class Failed(Exception):
    pass


def command(*words, check=True, timeout=TIMEOUT, **options):
    words = [str(word) for word in words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(words, timeout=timeout, check=False, **{**pipes, **options})
    if check and done.returncode != 0:
        raise Failed(f"`{' '.join(words)}` exited with status {done.returncode}:\n{done.stdout}")
    return done


def until(activity, condition, deadline=None):
    """Waits for a condition. `activity` describes the wait in the error message, such as "waiting for a ping". `deadline` is a time of
    `time.monotonic`."""
    began = time.monotonic()
    deadline = deadline or began + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"timed out after {time.monotonic() - began:.0f} s: {activity}")
        time.sleep(0.02)


class Process:
    """A child process with a method that waits for a line of its output. The end of the `with` block kills the process."""

    def __init__(self, *words, stderr=subprocess.STDOUT):
        self.words, self.lines = [str(word) for word in words], []
        self.changed = threading.Condition()
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": stderr, "text": True}
        self.process = subprocess.Popen(self.words, cwd=REPO, **pipes)
        stream = self.process.stdout if stderr == subprocess.STDOUT else self.process.stderr
        self.reader = threading.Thread(target=self.read, args=(stream,), daemon=True)
        self.reader.start()

    def read(self, stream):
        for line in stream:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()

    def wait_for(self, text, times=1):
        def count():
            return sum(text in line for line in self.lines)

        with self.changed:
            self.changed.wait_for(lambda: count() >= times or self.process.poll() is not None, timeout=TIMEOUT)
            if count() < times:
                raise Failed(f"`{' '.join(self.words)}` did not print {text!r} {times} times:\n{''.join(self.lines)}")

    def end(self, number, successor=None):
        """Sends a signal, waits for the end of the process, and returns its standard output. Requires a pipe of its own for standard error.
        `successor` is the process id of the program that has replaced the process in an upgrade."""

        def send(number):
            if successor is None:
                self.process.send_signal(number)
            else:
                os.kill(successor, number)

        send(number)
        deadline = threading.Timer(TIMEOUT, send, [signal.SIGKILL])
        deadline.start()
        out = self.process.stdout.read()
        self.process.wait()
        deadline.cancel()
        self.reader.join()
        return out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


class Network:
    """Two or three hosts, and a namespace `m` in the middle, where the program connects the hosts."""

    config = "wire.toml"
    ports = {"left": "left", "right": "right"}
    hosts = {"a": (A4, A6), "b": (B4, B6)}

    def __init__(self, kind, folder, tag=""):
        self.kind, self.folder, self.workers = kind, folder, 1
        self.names = {host: f"dp-live-{os.getpid()}-{host}{tag}" for host in ("m", *self.hosts)}

    def __enter__(self):
        try:
            for name in self.names.values():
                command("ip", "netns", "add", name)
                command("ip", "-n", name, "link", "set", "dev", "lo", "up")
            self.middle()
            for host, port in zip(self.hosts, INTERFACES):
                self.join(host, port)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names.values():
            command("ip", "netns", "del", name, check=False)

    def middle(self):
        # Without addresses, the kernel in this namespace does not answer.
        self.settings("m", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")

    def link(self, interface):
        """Returns the `link` table of a port for the config."""
        key = "name" if self.kind == "tap" else "interface"
        return f'{{ kind = "{self.kind}", {key} = "{interface}" }}'

    def sets(self):
        """Returns the overrides of the config."""
        return [f"port.{port}.link={self.link(interface)}" for port, interface in self.ports.items()]

    def settings(self, host, *settings):
        self.at(host, "sysctl", "-qw", *settings)

    def words(self, host, *words):
        return ["ip", "netns", "exec", self.names[host], *words]

    def kill_programs(self):
        """Kills all programs in the namespace `m`. The programs of upgrades are not children of the test."""
        for pid in command("ip", "netns", "pids", self.names["m"]).stdout.split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if pathlib.Path(f"/proc/{pid}/comm").read_text().startswith("dataplane"):
                    os.kill(int(pid), signal.SIGKILL)

    def at(self, host, *words, **options):
        return command(*self.words(host, *words), **options)

    def ip(self, host, *words, **options):
        return command("ip", "-n", self.names[host], *words, **options)

    def interface(self, host, name):
        """Returns the properties and the counters of an interface."""
        [about] = json.loads(self.ip(host, "-j", "-s", "link", "show", "dev", name).stdout)
        return about

    def mac(self, host, name):
        """Returns the MAC address of an interface."""
        return self.interface(host, name)["address"]

    def join(self, host, port):
        """Creates the link between a host and a port of the program."""
        v4, v6 = self.hosts[host]
        veth = f"{port}-host" if self.kind == "tap" else port
        queues = ["numrxqueues", "2", "numtxqueues", "2"]
        far = ["peer", "name", veth, "netns", self.names["m"], *queues]
        self.ip(host, "link", "add", "eth0", *queues, "type", "veth", *far)
        if self.kind == "tap":
            bridge = ["link", "add", f"{port}-bridge", "type", "bridge", "ageing_time", "0", "mcast_snooping", "0"]
            self.ip("m", *bridge)
            self.tap(port)
            self.slave(veth, port)
            self.ip("m", "link", "set", "dev", f"{port}-bridge", "up")
        self.ip("m", "link", "set", "dev", veth, "up")
        if self.kind == "xdp":
            # AF_XDP frames carry no offload information, so disable offloads. Each worker serves one queue. The kernel would
            # receive the packets of further queues.
            self.at(host, "ethtool", "--offload", "eth0", "tx", "off", "txvlan", "off")
            self.channels(host, "eth0")
            self.channels("m", port)
        self.settings(host, "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0")
        self.ip(host, "link", "set", "dev", "eth0", "up")
        self.ip(host, "address", "add", f"{v4}/24", "dev", "eth0")
        self.ip(host, "address", "add", f"{v6}/64", "dev", "eth0", "nodad")

    def channels(self, host, interface):
        self.at(host, "ethtool", "--set-channels", interface, "rx", self.workers, "tx", self.workers)

    def serve(self, workers):
        """For AF_XDP, sets the number of queues of all interfaces to the number of workers."""
        if self.kind == "xdp" and workers != self.workers:
            self.workers = workers
            for host, port in zip(self.hosts, INTERFACES):
                self.channels("m", port)
                self.channels(host, "eth0")

    def tap(self, port):
        self.at("m", "ip", "tuntap", "add", "dev", port, "mode", "tap", "multi_queue")
        self.slave(port, port)
        self.ip("m", "link", "set", "dev", port, "up")

    def slave(self, interface, port):
        # Disable learning, because replayed captures contain the addresses of both sides.
        self.ip("m", "link", "set", "dev", interface, "master", f"{port}-bridge")
        self.ip("m", "link", "set", "dev", interface, "type", "bridge_slave", "learning", "off")

    def remove_left(self):
        self.ip("m", "link", "del", "dev", "left")

    def restore_left(self):
        if self.kind == "tap":
            self.tap("left")
        else:
            self.join("a", "left")

    def set_mtu(self, mtu):
        middle = ["left", "right"]
        if self.kind == "tap":
            middle += [f"{port}-{part}" for port in ("left", "right") for part in ("host", "bridge")]
        for host, names in (("a", ["eth0"]), ("m", middle), ("b", ["eth0"])):
            for name in names:
                self.ip(host, "link", "set", "dev", name, "mtu", mtu)

    def pings(self, address=None):
        address = address or self.hosts["b"][0]
        return self.at("a", "ping", "-c", "1", "-W", "1", address, check=False).returncode == 0

    def ping(self, address, *words, count=10):
        """Waits for `count` replies. Ignores the losses that ping reports, because ping counts packets in flight as lost. The report
        of the program shows losses."""
        output = self.at("a", "ping", "-c", count, "-w", TIMEOUT, *words, address, timeout=2 * TIMEOUT).stdout
        received = re.search(r" (\d+) received", output)
        # Ping may send more requests while replies are in flight.
        if received is None or int(received[1]) < count:
            raise Failed(output)
        # If the program ended now, requests in flight would be lost. The next reply arrives after these requests.
        until("waiting for the reply to the last request", lambda: self.pings(address))


class Program:
    """The program between the hosts."""

    def __init__(self, network, *sets, workers=1, options=()):
        # An override of a key also overrides the key in later configs, so `workers` may be None.
        count = [] if workers is None else [f"runtime.workers={workers}"]
        sets = [*count, 'runtime.hugepages="none"', *network.sets(), *sets]
        sets = [word for entry in sets for word in ("--set", entry)]
        run = [PROGRAM, "run", REPO / "configs" / network.config, "--report", "json", *options, *sets]
        network.serve(workers or 1)
        self.network = network
        self.process = Process(*network.words("m", *run), stderr=subprocess.PIPE)

    def __enter__(self):
        self.process.__enter__()
        try:
            until("waiting for a ping through the program", self.is_through)
        except BaseException:
            self.process.__exit__()
            raise
        return self

    def is_through(self):
        if self.process.process.poll() is not None:
            self.process.reader.join()
            raise Failed(f"the program has ended:\n{self.log()}")
        return self.network.pings()

    def __exit__(self, *_):
        self.process.__exit__()

    def log(self):
        return "".join(self.process.lines)

    def kill(self):
        self.process.process.kill()
        self.process.process.wait()

    def lost(self):
        """Returns the packets that the ports have lost. The final report also counts packets that arrive while the program ends."""
        report = json.loads(command(PROGRAM, "stats", "--json", self.process.process.pid).stdout)
        return {
            f"{port['name']}.{name}": count
            for port in report["ports"]
            for name, count in port["device_counters"].items()
            if name in LOSSES
        }

    def end(self, losses=True):
        """Ends the program and returns its report. Checks exit status and ledger. If `losses` is False, also checks that the ports
        have lost no packet."""
        lost = {} if losses else self.lost()
        out = self.process.end(signal.SIGINT)
        status = self.process.process.returncode
        if status != 0:
            raise Failed(f"the program exited with status {status}:\n{self.log()}{out}")
        report = json.loads(out)
        missing = [worker["slots_missing"] for worker in report["workers"]]
        ledger = report["ledger"]
        if ledger["unaccounted"] != 0 or ledger["held"] != 0 or any(missing) or report["errors"]:
            why = "the ledger does not balance, packets or buffers are left, or the run had errors"
            raise Failed(f"{why}:\n{json.dumps(report, indent=2)}")
        if lost:
            raise Failed(f"packets were lost: {lost}")
        for port in ("left", "right"):
            link = self.network.interface("m", port)
            if "xdp" in link:
                raise Failed(f"an XDP program is still attached: {link}")
        return report


# The number of packets of `Numbered` per second.
RATE = 1000
# Receives numbered packets until the line `end` arrives. Prints the missing numbers, and the longest time between two packets.
RECEIVER = """
import socket, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# SO_RCVBUFFORCE
server.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
server.bind(("", 7001))
print("ready", flush=True)
numbers, gaps, last, order = set(), [], None, 0
while (data := server.recv(2000)) != b"end":
    now = time.monotonic()
    gaps.append((now - last if last else 0, int(data)))
    last = now
    order += int(data) in numbers
    numbers.add(int(data))
missing = [number for number in range(max(numbers) + 1) if number not in numbers]
longest = max(gaps)
print("received", len(numbers), "missing", len(missing), "twice", order, "gap_ms", round(longest[0] * 1000, 1), missing[:10], flush=True)
"""
# Sends numbered packets to a host until standard input closes.
SENDER = f"""
import select, socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.connect((sys.argv[1], 7001))
start, number = time.monotonic(), 0
while not select.select([sys.stdin], [], [], max(0, start + number / {RATE} - time.monotonic()))[0]:
    out.send(str(number).encode())
    number += 1
time.sleep(0.5)
for _ in range(5):
    out.send(b"end")
print("sent", number, flush=True)
"""


class Numbered:
    """Numbered UDP packets from `a` to `b`."""

    def __init__(self, network):
        self.network = network

    def __enter__(self):
        network = self.network
        self.receiver = Process(*network.words("b", sys.executable, "-c", RECEIVER))
        try:
            self.receiver.wait_for("ready")
            words = network.words("a", sys.executable, "-c", SENDER, network.hosts["b"][0])
            self.sender = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except BaseException:
            self.receiver.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.sender.kill()
        self.sender.wait()
        self.receiver.__exit__()

    def end(self):
        """Ends the packets. Returns the numbers of lost packets and of packets that arrived twice."""
        sent, _ = self.sender.communicate(timeout=TIMEOUT)
        self.receiver.wait_for("received")
        words = next(line for line in self.receiver.lines if "received" in line).split()
        sent, received, twice, gap = int(sent.split()[1]), int(words[1]), int(words[5]), float(words[7])
        print(f"    {sent} numbered packets, {sent - received} lost, {twice} twice, longest gap {gap} ms", flush=True)
        return sent - received, twice


def iperf(network, *words):
    """Runs iperf3 from `a` to `b`, and returns the number of received bytes."""
    with Process(*network.words("b", "iperf3", "--server", "--one-off", "--forceflush")) as server:
        server.wait_for("Server listening")
        done = network.at("a", "iperf3", "--json", "--time", 1, "--connect-timeout", 10_000, *words)
    end = json.loads(done.stdout)["end"]
    received = end.get("sum_received", end.get("sum", {}))["bytes"]
    if received == 0:
        raise Failed(f"no data was received: {end}")
    return received


def built(profile="debug"):
    """Builds the program with the profile `debug` or `release`, and returns its path."""
    options, timeout = (["--release"], 3600) if profile == "release" else ([], 1800)
    command("cargo", "build", "--quiet", "--locked", *options, "--bin", "dataplane", cwd=REPO, timeout=timeout)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")) / profile / "dataplane"


def reason_to_skip(tools, groups="live"):
    """Returns the reason why the tests cannot run here, or None. `groups` are the groups of tools/setup that install `tools`."""
    if os.geteuid() != 0:
        return "network namespaces require root"
    missing = [tool for tool in [*TOOLS, *tools] if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed; help: run `tools/setup {groups}`"
    probe = f"dp-live-{os.getpid()}-probe"
    made = command("ip", "netns", "add", probe, check=False)
    if made.returncode != 0:
        return f"cannot create a network namespace: {made.stdout.strip()}"
    try:
        veth = command("ip", "-n", probe, "link", "add", "x", "type", "veth", "peer", "name", "y", check=False)
        return None if veth.returncode == 0 else f"cannot create a veth pair: {veth.stdout.strip()}"
    finally:
        command("ip", "netns", "del", probe)


def skip(reason, margin=""):
    """Reports that tests are skipped because the machine lacks something. Raises an error if DATAPLANE_SKIPS is `fail`."""
    if os.environ.get("DATAPLANE_SKIPS") == "fail":
        sys.exit(f"DATAPLANE_SKIPS=fail, but this machine cannot run the tests: {reason}")
    print(f"{margin}skipped: {reason}")


def main(description, names, tools, network=Network, kinds=None, groups="live"):
    """Runs the cases that the command line selects, and returns the exit status. A case returns None, or the reason why the case does
    not apply to the kind of the links. `kinds` are the default kinds of links. `groups` are
    the groups of tools/setup that install `tools`."""
    cases = {name.removeprefix("case_"): case for name, case in names.items() if name.startswith("case_")}
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--times", type=int, default=1, help="repeat the cases this many times")
    arguments.add_argument("--only", choices=cases, help="run only this case")
    arguments.add_argument("--program", type=pathlib.Path, help="program to test (default: build it)")
    arguments.add_argument("kinds", nargs="*", metavar="KIND")
    chosen = arguments.parse_args()
    unknown = set(chosen.kinds) - set(KINDS)
    if unknown:
        arguments.error(f"unknown kind of link: {', '.join(unknown)} (choose from {', '.join(KINDS)})")
    reason = reason_to_skip(tools, groups)
    if reason:
        skip(reason)
        return 0
    # On SIGTERM, raise SystemExit, so that the `with` blocks end their processes and remove their namespaces.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    global PROGRAM
    PROGRAM = chosen.program or built()
    cases = {chosen.only: cases[chosen.only]} if chosen.only else cases
    script = pathlib.Path(sys.argv[0]).name
    for _ in range(chosen.times):
        for kind in chosen.kinds or kinds or KINDS:
            if kind == "tap" and not pathlib.Path("/dev/net/tun").exists():
                print("  tap")
                skip("/dev/net/tun does not exist; help: run `modprobe tun`", "    ")
                continue
            for name, case in cases.items():
                began = time.monotonic()
                print(f"  {kind} {name}", flush=True)
                try:
                    with tempfile.TemporaryDirectory() as folder, network(kind, pathlib.Path(folder)) as made:
                        reason = case(made)
                except (Failed, subprocess.TimeoutExpired) as failed:
                    print(f"{script}: {kind} {name}: {failed}", file=sys.stderr)
                    return 1
                print(f"    {reason or 'ok'}, {time.monotonic() - began:.1f} s", flush=True)
    left = re.findall(rf"dp-live-{os.getpid()}-\w+", command("ip", "netns", "list").stdout)
    if left:
        print(f"{script}: network namespaces were not removed: {left}", file=sys.stderr)
        return 1
    return 0
