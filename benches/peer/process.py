"""Starts measured programs, exchanges lines with these programs, and ends each program by its process id, also after an error."""

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
    """A program that reads commands from standard input and prints responses to standard output."""

    def __init__(self, command, discard=False):
        """`discard`: keeps the output only for error messages, so that nobody has to read the pipe."""
        self.command = [str(word) for word in command]
        self.printed = []
        self.log = tempfile.TemporaryFile("w+") if discard else None
        self.process = subprocess.Popen(
            # Without line buffering, a response would stay in the program's buffer.
            ["stdbuf", "-oL", *self.command],
            stdin=subprocess.PIPE,
            stdout=self.log or subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            # Background jobs (`&`) of a shell ignore SIGINT. Their children inherit this setting, so restore the default.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        running.add(self.process)

    def write_line(self, command):
        try:
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.failed(f"the program had ended before `{command}`")

    def wait_for(self, pattern, timeout=TIMEOUT_S):
        """Reads lines until the compiled pattern matches, and returns the match."""
        watchdog = threading.Timer(timeout, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                self.printed.append(line)
                if match := pattern.search(line):
                    return match
        finally:
            watchdog.cancel()
        return self.failed(f"no line matched `{pattern.pattern}` within {timeout} s")

    def quit(self):
        """Ends the program with the command `quit`."""
        self.write_line("quit")
        try:
            self.printed.append(self.process.communicate(timeout=TIMEOUT_S)[0])
        except subprocess.TimeoutExpired:
            self.failed("the program did not end after `quit`")
        running.discard(self.process)
        if self.process.returncode != 0:
            self.failed(f"exited with status {self.process.returncode}")

    def close(self, failed):
        """Ends the program at the end of a `with` block: with the command `quit`, or immediately after an error."""
        if failed:
            self.kill()
        else:
            self.quit()

    def interrupt(self):
        """Ends the program with SIGINT."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.failed("the program did not end after SIGINT")
        running.discard(self.process)

    def failed(self, message):
        """Ends this script with an error that contains the last lines of the program."""
        self.kill()
        if self.log:
            self.log.seek(0)
            self.printed = self.log.readlines()
        printed = "".join(self.printed[-15:])
        return fail(f"{' '.join(self.command)}: {message}\n{printed}")

    def kill(self):
        if self.process in running:
            self.process.kill()
            self.process.wait()
            running.discard(self.process)
