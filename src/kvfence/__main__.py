"""``python -m kvfence`` is ``kvfence``."""

from kvfence.cli.main import main

if __name__ == "__main__":
    main()
