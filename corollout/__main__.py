"""``python -m corollout`` is ``corollout``."""

from corollout.cli.main import app

if __name__ == "__main__":
    app()
