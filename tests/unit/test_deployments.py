"""Deployments beyond one server's flags: URLs, groups, the environment; what is told before a boot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.formats import FORMATS
from harness.server import CannotBoot, Deployment, load_deployment, load_deployments
from harness.server.deployments import SCRIPTED_FLAGS, fill
from harness.server.families import families
from harness.server.nodes import generates_alone, node_count, node_rank, serves_api
from harness.server.preflight import Doubt, doubts, remote_code_sha256

KIMI = Path(__file__).resolve().parents[2] / "fixtures" / "templates" / "kimi_k25.jinja"
QWEN = "{% if tools %}<tool_call>{% endif %}<|im_start|>{% if enable_thinking is false %}<think>{% endif %}"


def _written(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_speculative_deployment_says_that_processors_may_be_bypassed() -> None:
    speculative = [one for one in load_deployments().values() if "--speculative-algorithm" in one.flags]
    assert {"kimi-k2.5-eagle3", "deepseek-v3.1-mtp"} <= {one.name for one in speculative}
    assert [one.name for one in speculative if "may bypass" not in one.note] == []


def test_every_mechanism_has_a_kimi_deployment() -> None:
    known = load_deployments()
    names = (
        "",
        "-plain",
        "-reasoning",
        "-eagle3",
        "-dp-attention",
        "-router",
        "-pd",
        "-deterministic",
        "-two-nodes",
    )
    kimi = [known[f"kimi-k2.5{name}"] for name in names]
    assert all(one.model == "moonshotai/Kimi-K2.5" and one.gpus >= 8 for one in kimi)
    booted = [member for one in kimi for member in (one.members() or (one,)) if member.url is None]
    assert all(one.trust_remote_code for one in booted)


def test_values_come_from_the_environment() -> None:
    two = load_deployment("kimi-k2.5-two-nodes")
    with pytest.raises(CannotBoot, match="NODE_RANK is not set") as told:
        two.filled({"HEAD_ADDR": "h:1"})
    assert "kimi-k2.5-two-nodes" in told.value.where and "NODE_RANK" in told.value.remedy
    flags = two.filled({"HEAD_ADDR": "h:1", "NODE_RANK": "1"}).all_flags()
    assert (node_rank(flags), node_count(flags), serves_api(flags)) == (1, 2, False)
    assert "h:1" in flags
    drafted = load_deployment("kimi-k2.5-eagle3")
    assert "mine/drafter" in drafted.filled({"DRAFT_MODEL": "mine/drafter"}).flags
    assert any("eagle3" in flag for flag in drafted.filled({}).flags), "a default"
    assert fill('{"thinking": true, "A": {}}', {}) == '{"thinking": true, "A": {}}', "JSON is no placeholder"


def test_half_of_a_pair_is_not_asked_alone() -> None:
    assert not generates_alone(load_deployment("kimi-k2.5-prefill").flags)
    assert generates_alone(load_deployment("kimi-k2.5").flags)


def test_a_url_is_attached_to_and_not_booted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDGATE_BASE_URL", "http://10.0.0.5:30000")
    one = load_deployment("attached")
    assert one.filled().url == "http://10.0.0.5:30000"
    with pytest.raises(CannotBoot, match="no single server") as told:
        one.server()
    assert told.value.remedy == "attach to it"
    with pytest.raises(CannotBoot, match="names no running server"):
        load_deployment("tiny").attach()


def test_a_group_hands_out_gpus_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _written(
        tmp_path,
        '[a]\nmodel="x/a"\ngpus=2\n[b]\nmodel="x/b"\ngpus=1\nenv={CUDA_VISIBLE_DEVICES="7"}\n'
        '[u]\nurl="http://h:1"\n[g]\nservers=["a","u","b","a"]\nrouter_flags=["--policy","random"]\n',
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    group = load_deployment("g", file)
    assert (group.model, group.gpus, group.router_flags) == ("x/a", 5, ("--policy", "random"))
    visible = [one.env.get("CUDA_VISIBLE_DEVICES") for one in group.members()]
    assert visible == ["0,1", None, "7", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,3")
    assert [one.env.get("CUDA_VISIBLE_DEVICES") for one in group.members()] == ["4,5", None, "7", "6,3"]
    with pytest.raises(CannotBoot, match="no single server"):
        group.server()


def test_what_others_can_reach_is_never_scripted() -> None:
    one = load_deployment("qwen3-8b")
    assert set(SCRIPTED_FLAGS) <= set(one.server().flags)
    assert not set(SCRIPTED_FLAGS) & set(one.server(host="0.0.0.0").flags)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[a]\nurl="http://h:1"\ngpus=1\n', "'url' excludes 'gpus'"),
        ('[a]\nservers=["b"]\nflags=[]\n', "'servers' excludes 'flags'"),
        ('[a]\nservers=["b"]\n', "'b', which is not in this file"),
        ("[a]\nservers=[]\n", "a list of names"),
        ('[a]\nservers=["a"]\n', "a group itself"),
        ('[a]\nmodel="x"\ngpus=1\nrouter_flags=[]\n', "belongs to a group"),
        ('[a]\nmodel="x"\ngpus=1\nflags=["--trust-remote-code"]\n', "trust_remote_code = true"),
    ],
)
def test_a_wrong_table_is_told_where_and_why(text: str, why: str, tmp_path: Path) -> None:
    file = _written(tmp_path, text)
    with pytest.raises(CannotBoot, match="not well formed") as told:
        load_deployments(file)
    assert why in told.value.why and str(file) in told.value.where


def test_families_take_their_parsers_from_the_formats() -> None:
    known = {family.name: family for family in families()}
    for name in ("kimi_k2", "qwen3"):  # the tables with the key `format`
        format_ = FORMATS[name]
        assert known[name].reasoning == format_.reasoning_parsers
        assert set(known[name].tools) <= set(format_.tool_parsers)
        assert known[name].switch == format_.template_switch
    assert all(family.origin for family in known.values())


def _model(folder: Path, template: str | None, config: dict[str, Any] | None = None) -> str:
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    return str(folder)


def _told(found: tuple[Doubt, ...]) -> list[tuple[str, str]]:
    return [(doubt.severity, doubt.remedy) for doubt in found]


def test_a_forgotten_reasoning_parser_is_told_with_its_name(tmp_path: Path) -> None:
    kimi = _model(tmp_path, KIMI.read_text(encoding="utf-8"))
    first, second = doubts(kimi, [])
    assert first.severity == "warning" and "--reasoning-parser kimi_k2" in first.remedy
    assert "`reasoning` will be empty in every response" in first.why
    assert second.severity == "notice" and "--tool-call-parser kimi_k2" in second.remedy
    assert doubts(kimi, ["--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"]) == ()
    assert doubts(kimi, ["--reasoning-parser", "auto", "--tool-call-parser", "auto"]) == ()
    unknown = _model(tmp_path, "<|x|><think>")
    (doubt,) = doubts(unknown, [])
    assert doubt.severity == "warning" and "auto" in doubt.remedy


def test_another_familys_parser_is_an_error(tmp_path: Path) -> None:
    qwen = _model(tmp_path, QWEN)
    found = doubts(qwen, ["--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"])
    assert _told(found) == [
        ("error", "use --reasoning-parser qwen3"),
        ("error", "use --tool-call-parser qwen"),
    ]
    also = doubts(qwen, ["--reasoning-parser", "deepseek-r1", "--tool-call-parser", "qwen25"])
    assert _told(also) == [("warning", "use --reasoning-parser qwen3")]
    coder = _model(tmp_path, "{{ tools }}<|im_start|><function=x><parameter=y>")
    assert _told(doubts(coder, ["--tool-call-parser", "qwen3_coder"])) == []
    wrong = doubts(coder, ["--tool-call-parser", "qwen", "--reasoning-parser", "qwen3"])
    assert [doubt.severity for doubt in wrong] == ["error", "error"]
    assert "leave --reasoning-parser out" in wrong[0].remedy


def test_a_template_given_by_flag_is_the_one_that_is_read(tmp_path: Path) -> None:
    model = _model(tmp_path, QWEN)
    flags = ["--chat-template", str(KIMI), "--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"]
    assert doubts(model, flags) == ()


def test_configuration_decides_where_there_is_no_template(tmp_path: Path) -> None:
    model = _model(tmp_path, None, {"architectures": ["DeepseekV32ForCausalLM"]})
    first, *_ = doubts(model, [])
    assert "--reasoning-parser deepseek-v3" in first.remedy
    (off,) = doubts(model, ["--reasoning-parser", "deepseek-v3", "--tool-call-parser", "deepseekv32"])
    assert off.severity == "notice" and '"thinking": true' in off.remedy


def test_code_that_is_not_trusted_and_files_that_are_not_here(tmp_path: Path) -> None:
    model = _model(tmp_path, None, {"auto_map": {"AutoConfig": "x.Y"}})
    (doubt,) = doubts(model, [])
    assert doubt.severity == "warning" and "--trust-remote-code" in doubt.remedy
    assert doubts(model, ["--trust-remote-code"]) == ()
    (nothing,) = doubts("no-such-owner/no-such-model", ["--reasoning-parser", "kimi_k2"])
    assert nothing.severity == "notice" and "no-such-owner/no-such-model" in nothing.why


def test_the_digest_of_remote_code_covers_names_and_contents(tmp_path: Path) -> None:
    assert remote_code_sha256(tmp_path) is None
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "weights.bin").write_text("no code")
    first = remote_code_sha256(tmp_path)
    assert first is not None and len(first) == 64
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    second = remote_code_sha256(tmp_path)
    (tmp_path / "b.py").write_text("x = 2\n")
    assert len({first, second, remote_code_sha256(tmp_path)}) == 3


def test_a_deployment_is_data_only() -> None:
    one = Deployment(name="x", model="org/model", gpus=1, trust_remote_code=True, reasoning_parser="qwen3")
    assert one.all_flags() == ("--trust-remote-code", "--reasoning-parser", "qwen3")
    with pytest.raises(AttributeError):
        one.name = "y"  # type: ignore[misc]
