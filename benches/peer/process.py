"""Programs that are measured: started, spoken to by lines, and ended by their own process id, however this one ends."""

import atexit
import signal
import subprocess
import tempfile
import threading

from measure import fail

TIMEOUT_S = 120

running = set()


def end_all():
    for process in list(running):
        process.kill()
        process.wait()


atexit.register(end_all)


class Program:
    """A program with orders on its standard input and answers on its standard output."""

    def __init__(self, command, discard=False):
        """`discard`: what it prints is not asked for, and kept for a message alone."""
        self.command = [str(word) for word in command]
        self.printed = []
        self.log = tempfile.TemporaryFile("w+") if discard else None
        self.process = subprocess.Popen(
            # Output would otherwise come in blocks, once there is enough of it.
            ["stdbuf", "-oL", *self.command],
            stdin=subprocess.PIPE,
            stdout=self.log or subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            # What a shell starts behind its back (`&`) hears of no SIGINT, and neither would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        running.add(self.process)

    def say(self, order):
        try:
            self.process.stdin.write(f"{order}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.failed(f"it was gone before `{order}`")

    def until(self, wanted, timeout=TIMEOUT_S):
        """The next line in which `wanted`, a compiled pattern, is found; gives the match."""
        watchdog = threading.Timer(timeout, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                self.printed.append(line)
                if found := wanted.search(line):
                    return found
        finally:
            watchdog.cancel()
        return self.failed(f"it did not print `{wanted.pattern}` in {timeout} s")

    def end(self, order):
        """Has it end by itself; gives all that it printed."""
        self.say(order)
        try:
            self.printed.append(self.process.communicate(timeout=TIMEOUT_S)[0])
        except subprocess.TimeoutExpired:
            self.failed(f"it did not end on `{order}`")
        running.discard(self.process)
        if self.process.returncode != 0:
            self.failed(f"it ended with status {self.process.returncode}")
        return "".join(self.printed)

    def leave(self, failed):
        """Ends it as a block does that it served: by its order `quit`, or at once where something else failed."""
        if failed:
            self.kill()
        else:
            self.end("quit")

    def interrupt(self):
        """Has it end by SIGINT."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.failed("it did not end on SIGINT")
        running.discard(self.process)

    def failed(self, what):
        self.kill()
        if self.log:
            self.log.seek(0)
            self.printed = self.log.readlines()
        printed = "".join(self.printed[-15:])
        return fail(f"{' '.join(self.command)}: {what}\n{printed}")

    def kill(self):
        if self.process in running:
            self.process.kill()
            self.process.wait()
            running.discard(self.process)
