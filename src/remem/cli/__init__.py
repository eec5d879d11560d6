"""The command line: one file per command, each importing torch only when it must."""
