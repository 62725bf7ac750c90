"""The part of YAML that configuration files are written in."""

from __future__ import annotations

from pathlib import Path

import pytest

from horoacc.launcher.config_file import ConfigFileError, read_config
from horoacc.settings import TABLE, parse


def read(folder: Path, text: str) -> dict[str, object]:
    path = folder / "config.yaml"
    path.write_text(text)
    return dict(read_config(str(path), []))


def test_sections_keys_comments_and_quotes(tmp_path: Path) -> None:
    text = """
---
# Horovod writes keys with either sign.
params:
    fusion-threshold-mb: 32      # MiB
    arena: 'all'
stall_check:
  enabled: false
  warning_time_seconds: 12.5
timeline:
  filename: "/data/run #1.json"
  mark-cycles: yes
logging:
  level: DEBUG
  hide_timestamp:
launcher:
\ttcp: true
"""
    assert read(tmp_path, text) == {
        "fusion_threshold": 32 << 20,
        "arena": "all",
        "stall_check_disable": True,
        "stall_warning_seconds": 12.5,
        "timeline": "/data/run #1.json",
        "timeline_mark_cycles": True,
        "log_level": "debug",
        "tcp": True,
    }


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.key)
def test_every_setting_has_a_key(tmp_path: Path, setting) -> None:  # type: ignore[no-untyped-def]
    section, key = setting.yaml
    value = setting.choices[0] if setting.choices else "1"
    expected = parse(setting, value, key)
    if setting.kind == "bool" and setting.inverted:
        expected = not expected
    elif setting.factor != 1:
        expected = setting.factor
    assert read(tmp_path, f"{section}:\n  {key}: {value}\n") == {setting.key: expected}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("params:\n  fusion_treshold_mb: 3", 2, "did you mean 'fusion_threshold_mb'?"),
        ("parms:\n  arena: all", 1, "did you mean 'params'?"),
        ("params:\n  warning_time_seconds: 3", 2, "it belongs in section 'stall_check'"),
        ("params:\n  zebra: 3", 2, "section 'params' has no key 'zebra'"),
        ("verbose: true", 1, "'verbose' stands outside a section"),
        ("  arena: all", 1, "outside a section"),
        ("params:\n  arena: most", 2, "params.arena must be one of gradients, all, off"),
        ("params:\n  - arena", 2, "expected 'section:' or 'key: value'"),
        ("params:\n  arena:all", 2, "expected 'section:' or 'key: value'"),
        ("timeline:\n\n  mark_cycles: perhaps", 3, "must be 0 or 1, not 'perhaps'"),
    ],
)
def test_errors_name_file_line_and_remedy(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigFileError) as caught:
        read(tmp_path, text)
    assert f"config.yaml:{line}: " in str(caught.value)
    assert words in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="nowhere"):
        read_config(str(tmp_path / "nowhere"), [])
