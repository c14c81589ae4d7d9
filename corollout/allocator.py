"""Memory that the C library keeps for the next update, or returns to the system."""

import ctypes
import sys

# Parameters of mallopt, from glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
# Bytes from which blocks are mapped and unmapped one by one; a glibc that has a lower limit refuses the first.
_LARGEST_KEPT = (1 << 30, 1 << 25)


def keep_pages() -> bool:
    """Let glibc keep the pages of freed blocks up to 1 GB for later ones; whether this system can.

    By default glibc maps blocks of many megabytes from the system and unmaps them when they are freed. An update needs
    and frees the same large temporaries as the one before, and then the system has to clear every page of them again
    and again. With pages kept, resident memory stays near its peak, which is slightly higher, until the process ends.

    That is for whoever owns the process to decide, so importing the package does not do it; the commands that train and
    the workers of sweeps do. Call it at the start: blocks that are mapped already are not moved. The environment
    variables MALLOC_MMAP_THRESHOLD_=1073741824 and MALLOC_TRIM_THRESHOLD_=2147483647 do the same from outside. Other C
    libraries (musl, macOS, Windows) have no such settings; there this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    kept = any(library.mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST_KEPT)
    return bool(library.mallopt(_TRIM_THRESHOLD, _NEVER)) and kept


def release_pages() -> bool:
    """Return the pages of freed blocks to the system; whether this system can.

    Tensors of many sizes that come and go leave holes in the heap, which resident memory counts. Of a language model
    these can be as large as its weights.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return False
    return bool(library.malloc_trim(0))
