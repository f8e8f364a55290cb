"""Huge pages: raised for as long as they are needed, and put back."""

import atexit
import os
from pathlib import Path

from measure import HUGE_PAGE_KIB, fail, free_huge_pages, note

COUNT = Path(f"/sys/kernel/mm/hugepages/hugepages-{HUGE_PAGE_KIB}kB/nr_hugepages")


def need(pages):
    """Sees to it that so many huge pages are free; what was there before is there again when the program ends."""
    free = free_huge_pages()
    if free >= pages:
        return
    before = int(COUNT.read_text()) if COUNT.exists() else 0
    wanted = before + pages - free
    remedy = f"sysctl vm.nr_hugepages={wanted}"
    if os.geteuid() != 0:
        fail(f"it takes {pages} free huge pages of {HUGE_PAGE_KIB} KiB, there are {free}: sudo {remedy}, or run it as root")
    COUNT.write_text(f"{wanted}\n")
    raised = int(COUNT.read_text())

    def restore():
        # Who has changed it since knows better.
        if int(COUNT.read_text()) == raised:
            COUNT.write_text(f"{before}\n")

    atexit.register(restore)
    note(f"huge pages: raised from {before} to {raised} until it ends")
    if free_huge_pages() < pages:
        fail(f"the memory of this machine has no room for {pages} huge pages of {HUGE_PAGE_KIB} KiB: free some, then {remedy}")
