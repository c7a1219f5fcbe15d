"""Philox4x32-10 (Salmon et al., 2011): the counter-based generator behind first values."""

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

# The rows of Random123's kat_vectors for "philox4x32 10": counter, key, output.
KNOWN_ANSWERS = (
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def philox4x32(counter, key, rounds=10):
    """Returns the four output words of each counter.

    Args:
        counter: unsigned integers [..., 4], each below 2**32.
        key: two integers below 2**32, the same for all counters.
        rounds: how many rounds; ten is the standard.

    Returns:
        uint32 [..., 4].
    """
    c0, c1, c2, c3 = (np.asarray(counter)[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = (int(k) for k in key)
    for _ in range(rounds):
        # Both factors are below 2**32, so the products fit in 64 bits.
        even, odd = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (odd >> _HALF) ^ c1 ^ np.uint64(k0),
            odd & _LOW,
            (even >> _HALF) ^ c3 ^ np.uint64(k1),
            even & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) % 2**32, (k1 + _WEYL[1]) % 2**32
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)
