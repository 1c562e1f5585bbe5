"""``extrapolate sweep`` under the name that it had first; users have it in scripts and papers."""

from extrapolate.commands.sweep import start

if __name__ == "__main__":
    start()
