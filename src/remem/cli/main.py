"""`remem COMMAND`: finds the command, runs it, and turns every refusal into one sentence and exit code 2."""

from __future__ import annotations

import errno
import importlib
import os
import sys

from remem.errors import BadInput, RememError

COMMANDS = {
    "demo": "train a small rehearsal memory in three minutes, then read a stream with it",
    "train": "train TASK/METHOD and write its record",
    "eval": "test a saved model, on its own test set or on your data",
    "ask": "answer questions about a story with a saved model",
    "serve": "serve a store's streams over HTTP",
    "token": "make, list and take back tokens of a server",
    "append": "add events to a durable stream in a store",
    "query": "ask a stream's memory",
    "inspect": "where a store's streams are and how they fare",
    "export": "write a stream to one file",
    "import": "make a stream of such a file",
    "delete": "remove a stream from a store and from its files",
    "backup": "copy a store while it is in use",
    "verify": "check every checksum of a store",
    "table": "print a task's table: ours beside the paper's",
    "ablate": "undo each change from rm-paper to rm alone, on a small task, and print what that does",
    "sweep": "train methods at several values of one setting, such as the number of slots, and print the table",
    "horizon": "what a trained memory still knows after ever more segments",
    "plot": "draw what the records say: forgetting by age, learning curves, error by task, sweeps, horizons",
    "data": "import and inspect data",
    "bench": "measure speed, before and after in one run",
    "check": "whether a memory holds to the contract: a preset's, or one of your own",
}
HELP = "usage: remem COMMAND [OPTIONS]\n\n" + "\n".join(f"  {name:<7} {text}" for name, text in COMMANDS.items())


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            # here, where a closed pipe can still be told from a failure, and not when Python ends
            if sys.stdout is not None:
                sys.stdout.flush()
    except BadInput as error:
        print(f"remem: {error}", file=sys.stderr)
        return 2
    except RememError as error:
        print(f"remem: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left goes nowhere
        return 0
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        print(f"remem: {error.filename or 'The output'} can't be read or written ({error.strerror}).", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nremem: stopped; what was saved is kept.", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP + "\n\n`remem COMMAND --help` tells more.")
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"remem {version('remem')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        print(f"remem: there is no command {name!r}. There are: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    importlib.import_module(f"remem.cli.{name}").main(rest)
    return 0
