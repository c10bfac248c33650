"""Which pages hold which prompt's beginning: the driver's hint to the prefill node, which judges it.

A page's key is a digest of all tokens up to its end, chained page by page under the salt and a secret of this life.
So equal prompts of two salts have no key in common, and a key tells nothing to whoever has not the secret. Keys, and
what they were made from, stay in this object: in no event, command, trace, metric or log.

Not for: deciding who may share what (``protocol/sharing.py``).
"""

import hashlib
import secrets
from collections.abc import Iterable, Sequence

KEY_BYTES = 16


class PrefixIndex:
    """The keys of the pages that may be shared, and where those pages are: (serial, place in its lot)."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._places: dict[bytes, tuple[int, int]] = {}
        self._lots: dict[int, list[bytes]] = {}

    def __len__(self) -> int:
        """Give the number of pages that can be found."""
        return len(self._places)

    def keys(self, salt: str, blocks: Iterable[bytes]) -> list[bytes]:
        """Give the keys of a prompt's full pages.

        Shapes:
            blocks: what each page holds, in order.
        """
        key, keys = salt.encode(), []
        for block in blocks:
            key = hashlib.blake2b(key + block, digest_size=KEY_BYTES, key=self._secret).digest()
            keys.append(key)
        return keys

    def find(self, keys: Sequence[bytes]) -> tuple[tuple[int, int], ...]:
        """Give the lots that hold these pages in order, each with how many of its first pages; up to the first gap."""
        runs: list[tuple[int, int]] = []
        for key in keys:
            serial, place = self._places.get(key, (0, -1))
            if runs and (serial, place) == runs[-1]:
                runs[-1] = (serial, place + 1)
            elif place == 0:
                runs.append((serial, 1))
            else:
                break
        return tuple(runs)

    def num_known(self, keys: Sequence[bytes], serial: int) -> int:
        """Count the pages that can be found in other lots than this, up to the first that cannot."""
        places = (self._places.get(key, (serial, 0))[0] for key in keys)
        return next((number for number, other in enumerate(places) if other == serial), len(keys))

    def add(self, serial: int, keys: Sequence[bytes]) -> None:
        """The pages of a lot may be shared from now on."""
        self._lots[serial] = list(keys)
        self._places.update((key, (serial, place)) for place, key in enumerate(keys))

    def forget(self, serial: int, num_pages: int) -> int:
        """The last pages of a lot are gone; give how many of them could be found."""
        keys = self._lots.get(serial, [])
        gone = keys[-num_pages:]
        del keys[-num_pages:]
        if not keys:
            self._lots.pop(serial, None)
        mine = [key for key in gone if self._places.get(key, (0, 0))[0] == serial]
        for key in mine:
            del self._places[key]
        return len(mine)
