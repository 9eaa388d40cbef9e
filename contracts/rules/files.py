"""File rules: what must hold of a shard before its rows can be looked at.

Place in the flow: rules; the audit fires them while it opens a file. Imports the registry only.
"""

from __future__ import annotations

from contracts.rules.registry import RuleSpec, declare

_WRITE = "write it again with `contracts.shard.write_shard`"

declare(
    RuleSpec(
        "shard-missing",
        "the path names no file",
        "check the path, or take it out of the list",
        scope="file",
    ),
    RuleSpec(
        "shard-unreadable",
        "the file is not a readable parquet file",
        "copy it again from its source, or record its rows again; nothing in it can be trusted",
        scope="file",
    ),
    RuleSpec("shard-empty", "the shard holds no rows", "leave empty shards out of the set", scope="file"),
    RuleSpec(
        "schema-mismatch",
        "the columns or their types are not the shard schema's",
        _WRITE,
        scope="file",
        report="SpecForge#429, axolotl#3136",
    ),
    RuleSpec(
        "metadata-missing",
        "the file's metadata does not say schema version, format and strength",
        _WRITE,
        scope="file",
    ),
    RuleSpec(
        "format-unknown",
        "the shard's format is not one that shardgate knows",
        "use a mapped format, or add the family (docs/adding-a-format.md)",
        scope="file",
    ),
    RuleSpec(
        "tokenizer-missing",
        "without a tokenizer the token ids can't be compared with text and fields",
        "pass `--tokenizer PATH`, the model's folder or its tokenizer.json",
        scope="file",
        strengths=("token",),
    ),
    RuleSpec(
        "tokenizer-mismatch",
        "the tokenizer given is not the one that the rows were generated with",
        "pass the target model's own tokenizer; rows tokenised with another vocabulary are lost",
        column="tokenizer_sha256",
        scope="file",
        report="a public K2.5 data set tokenised with Qwen3's vocabulary",
    ),
    RuleSpec(
        "marker-not-token",
        "the format's markers are not tokens of the tokenizer",
        "pass the target model's own tokenizer, or record under the format that the model writes",
        scope="file",
    ),
    RuleSpec(
        "names-changed",
        "the rows' names, places or times are not the ones that the shard was written with",
        "take the shard from its source again; where rows were taken out on purpose, write it anew",
        scope="file",
        report="DeepSpec#29, SpecForge resume",
    ),
    RuleSpec(
        "row-unreadable",
        "a row can't be read by the checks",
        _WRITE,
    ),
)
