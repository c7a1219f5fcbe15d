"""Which keys a table holds, and their rows, do not depend on the number of threads."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, os, sys
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: int(sys.argv[1])]))
import jax, numpy as np
import dynemb_jax as dj

policy = dj.eviction.lfu(max_rows=120_000, record=1_000_000, decay=5)
mortal = dj.eviction.ttl(policy, steps=8)
counted = {"eviction": mortal, "admission": dj.admission.frequency(2)}
config = counted if sys.argv[2] == "counted" else {"eviction": policy}
table = dj.TableConfig("items", 1, max_load=0.97, **config)
emb = dj.create(dj.FeatureConfig(table), deterministic=True)
rng = np.random.default_rng(0)
for turn in range(12):
    ids = (rng.zipf(1.05, 50_000) % 400_000).astype(np.int32)
    acts, emb = dj.lookup(emb, ids)
    emb = dj.apply_gradients(emb, acts, np.sin(ids)[:, None].astype(np.float32))
drained = dj.drain_evicted(emb, "items")
got = dj.get(emb, "items", np.arange(400_000))
digest = hashlib.sha256()
for part in (drained.keys, drained.scores, got.found, got.rows, got.state["accumulator"]):
    digest.update(np.ascontiguousarray(part).tobytes())
assert drained.keys.size > 1_000 and dj.stats(emb)["items"].growths > 8
print(digest.hexdigest())
"""


@pytest.mark.parametrize("admitted", ["all", "counted"])
def test_the_same_keys_are_evicted_on_one_core_and_on_all(platform, admitted):
    if platform != "cpu" or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs the CPU, and two cores of it")

    digests = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, cores, admitted],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for cores in ("1", "1000")
    ]

    assert digests[0] == digests[1]
