"""Contract suites: what every memory must hold to. Run them on a method of your own, too."""
