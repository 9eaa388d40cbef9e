"""A certified set as `datasets` gives it; prints one JSON object. Run by `.venv-trainers`.

Place in the flow: test data. Imports `contracts`; datasets through it.
"""

from __future__ import annotations

import json
import sys

from contracts import ShardAltered, open_certified

certified = open_certified(sys.argv[1])
loaded = certified.huggingface()
streamed = certified.huggingface(streaming=True, columns=["sample_id"])
ids = [row["sample_id"] for row in streamed]
halves = [[row["sample_id"] for row in streamed.shard(2, number)] for number in range(2)]
shard = certified.certificate.path_of(certified.certificate.shards[-1])
data = bytearray(shard.read_bytes())
data[40] ^= 1
shard.write_bytes(data)
try:
    certified.huggingface()
    refused = False
except ShardAltered:
    refused = True
print(
    json.dumps(
        {
            "kind": type(loaded).__name__,
            "columns": loaded.column_names,
            "response": loaded["response_token_ids"][:],
            "messages": loaded[0]["messages"],
            "ids": ids,
            "halves": halves,
            "shards": streamed.num_shards,
            "refused": refused,
        }
    )
)
