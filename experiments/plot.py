"""``extrapolate plot`` under the name that it had first; users have it in scripts and papers."""

from extrapolate.commands.plot import start

if __name__ == "__main__":
    start()
