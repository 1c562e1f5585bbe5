"""``extrapolate results`` under the name that it had first; users have it in scripts and papers."""

from extrapolate.commands.results import start

if __name__ == "__main__":
    start()
