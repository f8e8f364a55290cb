"""The day of an operator: the case `day` of tools/check-operate.

The case installs the Debian package into a copy of this host's root: an overlay file system in a mount namespace of its own, which
disappears with the case. systemd does not run there, so the case starts the command of the unit. tools/check-package tests the package
under systemd. Each command of the day is on a page of docs: the case fails if the page does not have the command.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import time

import live
from live import B4, REPO, Failed, Numbered, Process, command, until

UNIT = REPO / "tools/packaging/dataplane@.service"
SOCKET = "/run/dataplane/edge/control.sock"
STATE = "/var/lib/dataplane/edge"
PORT = 7777
# Runs a command as the user of the unit, with the capabilities that the links of the config need.
HELD = "-all,+net_raw,+net_admin"
USER = ["setpriv", "--reuid=dataplane", "--regid=dataplane", "--clear-groups", f"--inh-caps={HELD}", f"--ambient-caps={HELD}"]

RULE = f'{{ action = "deny", protocol = "udp", dst_port = "{PORT}", name = "planted" }}'
CONFIG = f"""
[runtime]
workers   = 1
idle      = "sleep"
hugepages = "none"
metrics   = "127.0.0.1:9464"
black_box = {{ folder = "{STATE}" }}

[[port]]
name   = "left"
device = "host"
link   = {{ kind = "packet", interface = "left" }}

[[port]]
name   = "right"
device = "host"
link   = {{ kind = "packet", interface = "right" }}

[pipeline]
input = ["left", "right"]

[[pipeline.stage]]
use     = "parse"
outputs = {{ arp = "join", other = "drop" }}

[[pipeline.stage]]
name    = "rules"
use     = "acl"
default = "permit"
rules   = [{RULE}]

[[pipeline.stage]]
name  = "join"
use   = "cross"
pairs = [["left", "right"]]

[[pipeline.stage]]
name = "out"
use  = "tx"
"""

# Mounts the copy of the root, and keeps the mount namespace.
ROOT = """
set -e
mount -t tmpfs none "$0"
mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay none -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$0/root"
mount -t proc proc "$0/root/proc"
mount --rbind /sys "$0/root/sys"
mount --rbind /dev "$0/root/dev"
mount -t tmpfs none "$0/root/run"
mount -t tmpfs none "$0/root/tmp"
cp "$1" "$0/root/tmp/dataplane.deb"
# Without this file, dpkg does not index the manual pages of the whole host.
rm -f "$0/root/var/lib/man-db/auto-update"
echo mounted
exec sleep infinity
"""

# Prints a line for each datagram.
RECEIVER = f"""
import socket
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("{B4}", {PORT}))
print("bound", flush=True)
while True:
    print("received", len(receiver.recv(2048)), flush=True)
"""


class Day:
    """The copy of the root, and the commands of the operator."""

    def __init__(self, network, deb):
        self.network = network
        self.root = network.folder / "root"
        self.root.mkdir()
        self.holder = Process(*network.words("m", "unshare", "--mount", "sh", "-c", ROOT, self.root, deb))

    def __enter__(self):
        self.holder.__enter__()
        try:
            self.holder.wait_for("mounted")
        except BaseException:
            self.holder.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.holder.__exit__()

    def words(self, *words):
        """Returns a command line that runs in the copy of the root, in the network namespace of the program."""
        # Processes of the mount namespace hold its mounts, so the mounts disappear with the last process.
        return ["nsenter", f"--target={self.holder.process.pid}", "--mount", "--net", "chroot", f"{self.root}/root", *words]

    def inside(self, *words, status=0, **options):
        done = command(*self.words(*words), check=False, **options)
        if done.returncode != status:
            raise Failed(f"status {done.returncode} instead of {status}: {shlex.join(map(str, words))}\n{done.stdout}")
        return done.stdout

    def put(self, path, text):
        self.inside("sh", "-c", f'cat >"{path}"', input=text)

    def do(self, page, documented, *words, status=0, **options):
        """Runs a command of the program for the running service. Fails if `page` does not have the text `documented`."""
        check_page(page, documented)
        socket = [] if words[0] in ("explain", "check") else ["--socket", SOCKET]
        return self.inside("dataplane", *words, *socket, status=status, **options)


def check_page(page, documented):
    if documented not in (REPO / "docs" / page).read_text():
        raise Failed(f"docs/{page} does not have the command `{documented}`")


def expect(text, *parts):
    for part in parts:
        if part not in text:
            raise Failed(f"{part!r} is missing:\n{text}")


def check_metrics(text):
    """Checks a page of the metrics server with promtool."""
    checked = command("promtool", "check", "metrics", input=text, check=False)
    if checked.stdout or checked.returncode != 0:
        raise Failed(f"promtool check metrics: status {checked.returncode}:\n{checked.stdout}")


def service(day):
    """Starts the command of the unit as the user of the unit. Returns the process, and the overrides of the config."""
    # A service has these folders.
    unit = UNIT.read_text()
    start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1].replace("%i", "edge").split()
    for folder in ("/run/dataplane/edge", STATE):
        day.inside("install", "--directory", "--owner=dataplane", "--group=dataplane", "--mode=750", folder)
    at = start.index("--set")
    return Process(*day.words(*USER, *start), stderr=subprocess.PIPE), start[at:]


def run(network, terminal):
    """Runs the whole day. `terminal` opens a terminal in the namespace of the program."""
    began = [time.monotonic()]

    def done(what):
        now = time.monotonic()
        print(f"    {what}: {now - began[0]:.1f} s", flush=True)
        began[0] = now

    packages = network.folder / "packages"
    environment = os.environ | {"DPKG_DEB_COMPRESSOR_LEVEL": "0"}
    check_page("install.md", "tools/package deb")
    command(REPO / "tools/package", "--binary", live.PROGRAM, "--output", packages, "deb", env=environment, timeout=300)
    [deb] = packages.glob("dataplane_*.deb")
    with Day(network, deb) as day:
        check_page("install.md", "sudo apt install ./target/package/dataplane_")
        day.inside("dpkg", "--install", "/tmp/dataplane.deb")
        day.put("/etc/dataplane/edge.toml", CONFIG)
        day.do("install.md", "dataplane check --strict", "check", "/etc/dataplane/edge.toml")
        done("install the package, check the config")

        check_page("install.md", "sudo systemctl enable --now dataplane@edge")
        process, sets = service(day)
        with process:
            receiver = Process(*network.words("b", "python3", "-c", RECEIVER))
            with receiver:
                receiver.wait_for("bound")
                until("waiting for a ping through the service", network.pings)
                done("start the service")
                operate(network, day, terminal, receiver, sets, done)
            try:
                successor = upgrade(network, day)
                done("install the package again, upgrade the service while packets flow")
                report = process.end(signal.SIGTERM, successor)
            finally:
                network.kill_programs()
            if process.process.returncode != 0:
                raise Failed(f"the service ended with status {process.process.returncode}: {''.join(process.lines)}{report}")
            if report.count("unaccounted 0") != 2:
                raise Failed(f"the ledgers of the two programs do not balance:\n{report}")
        done("stop the service")
        check_page("install.md", "apt purge dataplane")
        day.inside("dpkg", "--purge", "dataplane")
        if day.inside("sh", "-c", "ls /usr/bin/dataplane 2>/dev/null || true"):
            raise Failed("the purge leaves the program")
        done("purge the package")


def send(network):
    """Sends five datagrams from `a`."""
    network.at("a", "bash", "-c", f"for i in 1 2 3 4 5; do echo x >/dev/udp/{B4}/{PORT}; done")


def arrives(network, receiver):
    """Sends datagrams, and waits until one arrives."""
    before = len(receiver.lines)
    send(network)
    until("waiting for a datagram", lambda: len(receiver.lines) > before)


def operate(network, day, terminal, receiver, sets, done):
    with terminal as screen:
        check_page("top.md", "dataplane top --socket PATH")
        screen.type(f"clear; {shlex.join(map(str, day.words('dataplane', 'top', '--socket', SOCKET)))}; echo status $?")
        screen.wait_for("edge.toml", "in, at most", "left", "right", "rules", "q quit")
        screen.keys("q")
        screen.wait_for("status 0")
    done("look at top")

    # A rule denies the datagrams.
    datagrams = f"while sleep 0.02; do echo x >/dev/udp/{B4}/{PORT}; done"
    with Process(*network.words("a", "bash", "-c", datagrams)):
        until("waiting for a drop", lambda: drops(day) > 0)
        text = day.do("why.md", "dataplane why", "why", "--time", "1s")
        expect(text, "1. rules.denied: ", "planted: deny udp", "dataplane set acl add permit")
        done("find the planted drop with why")

        capture = "/tmp/drops.pcapng"
        day.do("live-capture.md", "dataplane capture --drops -n 100 -w denied.pcapng", "capture", "--drops", "-n", "20", "-w", capture)
        fields = ["-T", "fields", "-e", "frame.comment", "-e", "udp.dstport"]
        lines = day.inside("tshark", "-r", capture, *fields, stderr=subprocess.DEVNULL).splitlines()
        if lines != [f"rules.denied\t{PORT}"] * 20:
            raise Failed(f"tshark reads other packets: {lines}")
        expect(day.inside("capinfos", "-c", "-M", capture), "Number of packets:   20")
        done("capture the dropped packets, read the file with tshark and capinfos")

    check_page("metrics.md", "curl --silent http://127.0.0.1:9464/metrics")
    metrics = network.at("m", "curl", "--silent", "http://127.0.0.1:9464/metrics").stdout
    expect(metrics, 'dataplane_stage_dropped_packets_total{stage="rules",reason="denied"}')
    check_metrics(metrics)
    done("scrape the metrics")

    new, other = "/tmp/new.toml", "/tmp/other.toml"
    day.put(new, CONFIG.replace(RULE, ""))
    day.put(other, CONFIG.replace('default = "permit"', 'default = "deny"'))
    expect(day.do("changing.md", "dataplane plan new.toml", "plan", new), "replace stage rules (rules): hitless")
    day.do("changing.md", "dataplane apply new.toml --confirm 60s", "apply", new, "--confirm", "60s")
    arrives(network, receiver)
    expect(day.do("changing.md", "dataplane confirm", "confirm"), "confirmed: change 1")
    done("change the rules, confirm")

    day.do("changing.md", "`apply NEW.toml --confirm 60s`", "apply", other, "--confirm", "1s")

    def states():
        history = day.do("changing.md", "`history`", "history", "--json")
        return [row["state"] for row in json.loads(history)["changes"]]

    until("waiting for the revert", lambda: "reverted" in states())
    arrives(network, receiver)
    done("let a change revert")

    expect(day.do("changing.md", "dataplane rollback", "rollback"), "rolled back: ")
    before = drops(day)
    send(network)
    until("waiting until the rule denies again", lambda: drops(day) >= before + 5)
    done("roll back")

    box = "/tmp/box.pcapng"
    expect(day.do("black-box.md", "dataplane black-box -w FILE", "black-box", "-w", box, stderr=subprocess.STDOUT), "wrote ")
    mode = day.inside("stat", "--format", "%a", box).strip()
    if mode != "600":
        raise Failed(f"the black box has the mode {mode}")
    config = "/etc/dataplane/edge.toml"
    text = day.do("black-box.md", "dataplane explain CONFIG --black-box FILE", "explain", config, "--black-box", box, *sets)
    expect(text, "rules (planted: deny udp", "dropped: rules.denied", "a client requested the file")
    if "another config" in text:
        raise Failed(f"the replay uses another config:\n{text}")
    done("write the black box, explain its packets")


def upgrade(network, day):
    """Installs the package again, and upgrades the service while packets flow. Returns the process id of the new program."""
    page = (REPO / "docs/upgrade.md").read_text()
    # The user and the group of the service run the command, as with the drop-in for systemd.
    [reload] = re.findall("^ExecReload=(/.*)$", page, re.MULTILINE)
    with Numbered(network) as numbered:
        day.inside("dpkg", "--install", "/tmp/dataplane.deb")
        answer = json.loads(day.inside(*USER, *reload.replace("%i", "edge").split(), "--json", stderr=subprocess.PIPE))
        if not answer["has_ended"]:
            raise Failed(f"the old program still runs: {answer}")
        # The new program uses the config after the rollback, and has the sockets.
        send(network)
        until("waiting until the rule denies", lambda: drops(day) == 5)
        expect(network.at("m", "curl", "--silent", "http://127.0.0.1:9464/metrics").stdout, 'reason="denied"} 5')
        lost, twice = numbered.end()
    if lost or twice:
        raise Failed(f"{lost} packets were lost and {twice} packets arrived twice during the upgrade")
    return answer["pid"]


def drops(day):
    """Returns the number of packets that the rules have denied."""
    stats = json.loads(day.do("stats.md", "dataplane stats", "stats", "--json", stderr=subprocess.DEVNULL))
    return stats["ledger"]["drops"].get("rules.denied", 0)
