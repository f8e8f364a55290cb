"""Shared parts of the benchmarks: the facts of the machine, the build of the measured program, and the output of results."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
HUGE_PAGE_KIB = 2048


def script():
    return Path(sys.argv[0]).name


def fail(message):
    sys.exit(f"{script()}: {message}")


def note(message):
    print(f"{script()}: {message}", file=sys.stderr)


def output(*command):
    """Returns the output of a command, or None if the command is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def field_of(path, name):
    """Returns the value of the first `name: value` line of a /proc file."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def free_huge_pages():
    path = Path(f"/sys/kernel/mm/hugepages/hugepages-{HUGE_PAGE_KIB}kB/free_hugepages")
    return int(path.read_text()) if path.exists() else 0


def machine(program, **more):
    """Returns the facts of this machine and of the measured program."""
    return {
        "cpu": field_of("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "hypervisor": "hypervisor" in (field_of("/proc/cpuinfo", "flags") or "").split(),
        "kernel": platform.release(),
        "memory_kib": int(field_of("/proc/meminfo", "MemTotal").split()[0]),
        **more,
        "dpdk": output("dpkg-query", "--show", "--showformat=${Version}", "dpdk-dev"),
        "rustc": output("rustc", "--version"),
        "dataplane": output(program, "--version") if program else None,
        "commit": output("git", "-C", str(REPO), "describe", "--always", "--dirty"),
    }


def machine_sentence(facts):
    """Returns the facts as a sentence for the text below a table."""
    guest = ", virtual machine" if facts["hypervisor"] else ""
    return (
        f"{facts['cpu']}, {facts['cores']} cores{guest}, Linux {facts['kernel'].partition('-')[0]}, {facts['pages']} pages, "
        f"DPDK {facts['dpdk']}, {facts['rustc']}."
    )


def reference_loop_ms(core):
    """Returns the time of a fixed amount of work on the core, in milliseconds. A change of this time shows that the speed of the
    machine has changed. The measured program does not affect this time."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        start = time.perf_counter()
        total = 0
        for number in range(1_000_000):
            total += number
        return round((time.perf_counter() - start) * 1000, 1)
    finally:
        os.sched_setaffinity(0, allowed)


def build(name="dataplane"):
    """Builds a program and returns its path. Asks cargo for the path, so that any target directory works."""
    command = ["cargo", "build", "--release", "--locked", "--bin", name, "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        fail("the release build failed: see above")
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == name:
            return message["executable"]
    return fail(f"cargo built no program `{name}`")


def summary(values):
    return {"median": round(statistics.median(values), 3), "min": min(values), "max": max(values)}


def cell(values, digits=1):
    """Returns a table cell: the median, with minimum and maximum."""
    if not values:
        return "–"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def write_json(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
    note(f"wrote {path}")


def update_docs(section, text, page=REPO / "docs/performance.md"):
    """Replaces the named section of a page with the text."""
    command = [str(REPO / "tools/replace-section"), str(page), section]
    subprocess.run(command, input=text + "\n", text=True, check=True)
