"""Generates the entries and the lookups of the tables. The files are equal on every machine.

A file starts with two 32-bit counts: the number of entries and the number of lookups. The entries and the lookups follow."""

import random
import struct
from array import array
from bisect import bisect
from itertools import accumulate

from measure import note
from peer.frames import captures

LOOKUPS = 1 << 20
# The number of next hops. A next hop fits in 2 bytes, the fastest size for rte_fib.
HOPS = 1 << 14

# The frequency of prefix lengths in thousandths, approximately as in the routing tables of the Internet.
LENGTHS_4 = {8: 1, 12: 1, 14: 1, 16: 14, 18: 14, 19: 25, 20: 44, 21: 50, 22: 115, 23: 100, 24: 625, 28: 5, 32: 5}
LENGTHS_6 = {29: 25, 32: 130, 36: 30, 40: 70, 44: 70, 46: 25, 47: 20, 48: 600, 56: 20, 64: 10}


def chooser(rng, weights):
    """Returns a function that picks keys according to their weights."""
    keys, sums = list(weights), list(accumulate(weights.values()))
    return lambda: keys[bisect(sums, rng.random() * sums[-1])]


def prefixes(rng, count, bits, lengths, into_range):
    """Returns different prefixes in random order. `into_range` maps a random address into the range of the prefixes."""
    length, found = chooser(rng, lengths), set()
    while len(found) < count:
        size = length()
        address = into_range(rng.getrandbits(bits))
        found.add((address >> (bits - size) << (bits - size), size))
    found = sorted(found)
    rng.shuffle(found)
    return found


def lpm4(file):
    """Writes a million prefixes, and random addresses of the whole range."""
    rng = random.Random(4)
    # No routes for multicast and reserved addresses.
    found = prefixes(rng, 1_000_000, 32, LENGTHS_4, lambda address: address % (224 << 24))
    entries, lookups = array("I"), array("I")
    for address, size in found:
        entries.extend((address, size, rng.randrange(HOPS)))
    lookups.extend(rng.getrandbits(32) for _ in range(LOOKUPS))
    write(file, len(found), entries, len(lookups), lookups)


def lpm6(file):
    """Writes 200,000 prefixes of 2000::/4, and random addresses inside these prefixes."""
    rng = random.Random(6)
    found = prefixes(rng, 200_000, 128, LENGTHS_6, lambda address: 0x2 << 124 | address >> 4)
    entries = b"".join(address.to_bytes(16, "big") + struct.pack("<II", size, rng.randrange(HOPS)) for address, size in found)

    def inside():
        address, size = found[rng.randrange(len(found))]
        return (address | rng.getrandbits(128 - size)).to_bytes(16, "big")

    write(file, len(found), entries, LOOKUPS, b"".join(inside() for _ in range(LOOKUPS)))


def flow(rng):
    return struct.pack("<IIHHI", rng.getrandbits(32), rng.getrandbits(32), rng.getrandbits(16), rng.getrandbits(16), 6)


def exact(file, hit):
    """Writes a million TCP flows, and lookups. If `hit` is true, the lookups are of these flows, otherwise of other flows."""
    rng = random.Random(9)
    flows = list({flow(rng): None for _ in range(1_000_000)})
    lookups = [rng.choice(flows) for _ in range(LOOKUPS)] if hit else [flow(rng) for _ in range(LOOKUPS)]
    write(file, len(flows), b"".join(flows), len(lookups), b"".join(lookups))


def acl(file, count):
    """Writes rules and packets similar to the access lists of ClassBench (Taylor and Turner, INFOCOM 2005).

    The prefixes of different rules have common leading bits. Most rules match any source port. The destination is one port, a range of
    ports, or any port. Most packets match a rule, with an uneven distribution over the rules. A tenth of the packets are random."""
    rng = random.Random(count)
    source_len = chooser(rng, {0: 8, 8: 1, 16: 6, 20: 4, 22: 4, 24: 18, 26: 4, 27: 5, 28: 10, 30: 5, 32: 35})
    destination_len = chooser(rng, {0: 2, 16: 3, 20: 3, 21: 4, 23: 6, 24: 20, 26: 4, 27: 6, 28: 6, 30: 4, 32: 42})
    protocol = chooser(rng, {6: 75, 17: 15, 1: 3, None: 7})
    well_known = [20, 21, 22, 23, 25, 53, 80, 110, 123, 143, 161, 443, 445, 1433, 1521, 3306, 3389, 5632, 8080]
    # The /16 networks that the addresses of the rules share.
    sites = [rng.getrandbits(32) for _ in range(max(8, count // 20))]

    def address(size):
        value = rng.choice(sites) & 0xFFFF0000 | rng.getrandbits(16)
        return value >> (32 - size) << (32 - size)

    def ports():
        kind = rng.random()
        if kind < 0.3:
            return 0, 65535
        if kind < 0.8:
            return (rng.choice(well_known),) * 2
        if kind < 0.9:
            return 1024, 65535
        first = rng.randrange(1024, 60000)
        return first, first + rng.choice([1, 5, 20, 100, 1000])

    rules = {}
    while len(rules) < count:
        sizes = source_len(), destination_len()
        number = protocol()
        mask = 0 if number is None else 255
        source_ports = (0, 65535) if rng.random() < 0.95 else ports()
        destination_ports = ports() if number in (6, 17) else (0, 65535)
        rules[address(sizes[0]), address(sizes[1]), *sizes, number or 0, mask, *source_ports, *destination_ports] = None
    rules = list(rules)

    def packet():
        if rng.random() < 0.1:
            return rng.getrandbits(32), rng.getrandbits(32), rng.getrandbits(16), rng.getrandbits(16), 6
        # A Pareto distribution, as in the traces of ClassBench.
        rule = rules[min(count - 1, int(count * 0.05 * (rng.paretovariate(1) - 1)))]
        source, destination, source_bits, destination_bits, number, mask, *port_ranges = rule
        return (
            source | rng.getrandbits(32 - source_bits),
            destination | rng.getrandbits(32 - destination_bits),
            rng.randint(*port_ranges[:2]),
            rng.randint(*port_ranges[2:]),
            number if mask else 6,
        )

    entries = b"".join(struct.pack("<IIBBBBHHHH", *rule) for rule in rules)
    lookups = b"".join(struct.pack("<IIHHBxxx", *packet()) for _ in range(1 << 17))
    write(file, count, entries, 1 << 17, lookups)


def write(file, entry_count, entries, lookup_count, lookups):
    file.write(struct.pack("<II", entry_count, lookup_count))
    file.write(entries)
    file.write(lookups)


SETS = {
    "lpm4": lpm4,
    "lpm6": lpm6,
    "exact-hit": lambda file: exact(file, True),
    "exact-miss": lambda file: exact(file, False),
    "acl-100": lambda file: acl(file, 100),
    "acl-1000": lambda file: acl(file, 1000),
    "acl-10000": lambda file: acl(file, 10_000),
}
# The version in the file names. Increase the version when a set changes, so that its file is written again.
VERSION = 1


def path(name):
    """Returns the path of a set. Writes the file if it does not exist."""
    path = captures() / f"{name}-{VERSION}.bin"
    if not path.exists():
        note(f"writing {path}")
        part = path.with_suffix(".part")
        with open(part, "wb") as file:
            SETS[name](file)
        part.rename(path)
    return path
