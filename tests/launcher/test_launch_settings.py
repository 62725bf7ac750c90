"""The table of settings: one row, and everything that is read and written from it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from horoacc import settings
from horoacc.launcher.arguments import build_parser, parse_arguments
from horoacc.settings import BUILD, RETIRED, TABLE, SettingError

ROOT = Path(__file__).resolve().parents[2]
ROWS = {setting.key: setting for setting in TABLE}
IGNORED = [retired for retired in RETIRED if not retired.refused]
REFUSED = [retired for retired in RETIRED if retired.refused]


def test_documentation_is_the_tables() -> None:
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == settings.documentation(), "run: python -m horoacc.settings > docs/settings.md"


def test_the_core_has_the_same_keys_and_defaults() -> None:
    from horoacc import _core

    assert settings.core_settings({}) == dict(_core.setting_defaults())


def test_names_are_unique_and_every_row_is_reachable() -> None:
    variables = [name for s in TABLE for name in (s.env, s.former_env, s.horovod_env) if name]
    flags = [flag for s in TABLE for flag in (*s.flags, *s.opposites, *s.former_flags)]
    sections = [s.yaml for s in TABLE]
    for names in (variables, flags, sections, [s.key for s in TABLE]):
        assert len(names) == len(set(names))
    assert None not in sections and all(s.flag for s in TABLE)
    assert all(s.env.startswith("HOROACC_") for s in TABLE)
    assert set(flags) <= set(build_parser()._option_string_actions)


def test_own_variable_wins_over_horovods_and_empty_means_not_given() -> None:
    def threshold(**environ: str) -> object:
        return settings.read(environ)["fusion_threshold"]

    assert threshold() == 64 << 20
    assert threshold(HOROVOD_FUSION_THRESHOLD="5") == 5
    assert threshold(HOROVOD_FUSION_THRESHOLD="5", HOROACC_FUSION_THRESHOLD="6") == 6
    assert threshold(HOROVOD_FUSION_THRESHOLD="5", HOROACC_FUSION_THRESHOLD="") == 5


@pytest.mark.parametrize(
    "setting", [row for row in TABLE if row.former], ids=lambda setting: setting.former
)
def test_a_renamed_setting_keeps_its_former_names(
    setting: settings.Setting, tmp_path: Path
) -> None:
    assert setting.former_env and setting.yaml
    text = "2" if setting.kind == "float" else "2+1"
    value = settings.parse(setting, text, "")
    section, key = setting.yaml
    config = tmp_path / "config.yaml"
    config.write_text(f"{section}:\n  {setting.former}: {text}\n")
    (flag,) = setting.former_flags
    ways = (
        ({setting.former_env: text}, [], f"{setting.former_env} is now {setting.env}"),
        ({}, [flag, text], f"{flag} is now {setting.flag}"),
        (
            {},
            ["--config-file", str(config)],
            f"{config}:2: {section}.{setting.former} is now {section}.{key}",
        ),
    )
    for environ, flags, notice in ways:
        options = parse_arguments([*flags, "-np", "1", "true"], environ)
        assert (options.values[setting.key], options.notices) == (value, [notice])
    both = {setting.former_env: "7", setting.env: text}
    assert settings.read(both)[setting.key] == value


def test_a_renamed_choice_keeps_its_former_name(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("params:\n  control: board\n")
    for environ, flags, where in (
        ({"HOROACC_CONTROL": "Board"}, [], "HOROACC_CONTROL 'Board'"),
        ({}, ["--control", "board"], "--control 'board'"),
        ({}, ["--config-file", str(config)], f"{config}:2: params.control 'board'"),
    ):
        options = parse_arguments([*flags, "-np", "1", "true"], environ)
        assert (options.text("control"), options.notices) == ("shm", [f"{where} is now 'shm'"])


def test_help_shows_users_flags_on_two_screens_and_help_all_every_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            parse_arguments([flag], {})
        assert ended.value.code == 0
        shown[flag] = capsys.readouterr().out
    assert len(shown["--help"].splitlines()) <= 2 * 50
    for setting in TABLE:
        assert setting.flag and setting.flag in shown["--help-all"]
        named = setting.opposites[0] if setting.inverted else setting.flag
        line = re.search(rf"^  {named}(\s|$)", shown["--help"], re.MULTILINE)
        assert bool(line) == (setting.audience == "users")
    assert all(retired.flag in shown["--help-all"] for retired in RETIRED)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("0", False), ("2", True), ("-1", False), (" 1 ", True)]
)
def test_bools_are_numbers_above_zero(text: str, value: bool) -> None:
    for name in ("HOROVOD_TIMELINE_MARK_CYCLES", "HOROACC_TIMELINE_MARK_CYCLES"):
        assert settings.read({name: text})["timeline_mark_cycles"] is value


def test_words_are_bools_only_under_the_new_names() -> None:
    """Horovod takes `true` for 0 without a word; here that is an error."""
    assert settings.read({"HOROACC_LOG_HIDE_TIME": "True"})["log_hide_time"] is True
    with pytest.raises(SettingError, match="HOROVOD_LOG_HIDE_TIME must be 0 or 1, not 'true'"):
        settings.read({"HOROVOD_LOG_HIDE_TIME": "true"})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("HOROACC_CONTROL", "carrier pigeon", "one of auto, shm, tcp, mpi"),
        ("HOROVOD_LOG_LEVEL", "loud", "one of trace, debug"),
        ("HOROACC_FUSION_THRESHOLD", "1.5", "a whole number"),
        ("HOROACC_FUSION_THRESHOLD", "-1", "at least 0"),
        ("HOROACC_START_TIMEOUT", "nan", "a number"),
        ("HOROACC_SPIN_MICROSECONDS", "-2", "at least -1"),
        ("HOROACC_STALL_CHECK_DISABLE", "maybe", "0 or 1"),
    ],
)
def test_bad_values_name_the_variable_and_the_value(name: str, text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        settings.core_settings({name: text})
    assert name in str(caught.value)
    assert f"'{text}'" in str(caught.value) and words in str(caught.value)


def test_values_that_contradict_each_other() -> None:
    environ = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30"}
    with pytest.raises(SettingError, match=r"30.*below.*60"):
        settings.core_settings(environ)
    settings.core_settings(environ | {"HOROVOD_STALL_CHECK_TIME_SECONDS": "30"})


def test_core_settings_are_text_of_the_cores_own_keys() -> None:
    environ = {
        "HOROVOD_LOG_LEVEL": "DEBUG",
        "HOROVOD_TIMELINE": "DYNAMIC",
        "HOROACC_STALL_CHECK_DISABLE": "yes",
        "HOROACC_STALL_CHECK_TIME_SECONDS": "0.25",
        "HOROACC_VERBOSE": "1",
    }
    values = settings.core_settings(environ)
    assert values["log_level"] == "debug" and values["timeline"] == ""
    assert values["stall_check_disable"] == "1" and values["stall_warning_seconds"] == "0.25"
    assert "verbose" not in values and "mpi_args" not in values


def given(*flags: str) -> dict[str, object]:
    return dict(parse_arguments([*flags, "-np", "1", "true"], {}).given)


def test_flags_set_what_they_say() -> None:
    assert given("--fusion-threshold-mb", "2.5") == {"fusion_threshold": 5 << 19}
    assert given("--stall-check") == {"stall_check_disable": False}
    assert given("--no-stall-check") == {"stall_check_disable": True}
    assert given("--log-with-timestamp") == {"log_hide_time": False}
    assert given("--log-hide-timestamp") == {"log_hide_time": True}
    assert given("--no-log-hide-timestamp") == {"log_hide_time": False}
    assert given("--gloo") == given("--tcp") == {"tcp": True}
    assert given("--mpi") == given("--no-tcp") == {"tcp": False}
    assert given("--tcp", "--mpi") == {"tcp": False}


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.key)
def test_every_flag_and_its_opposite(setting: settings.Setting) -> None:
    assert setting.flag
    if setting.kind == "bool":
        on = not setting.inverted
        assert given(setting.flag) == {setting.key: on}
        for opposite in setting.opposites:
            assert given(opposite) == {setting.key: not on}
    else:
        text = setting.choices[-1] if setting.choices else " ".join(["60"] * setting.words)
        expected = settings.parse(replace(setting, factor=1), text, setting.flag)
        if setting.factor != 1:
            expected = int(expected) * setting.factor
        words = text.split() if setting.words > 1 else [text]
        assert given(setting.flag, *words) == {setting.key: expected}


@pytest.mark.parametrize("retired", IGNORED, ids=lambda retired: retired.flag)
def test_retired_flags_are_accepted(retired: settings.Retired) -> None:
    for flag in retired.flags:
        options = parse_arguments([flag, *["5"] * retired.values, "-np", "1", "true"], {})
        assert options.notices == [f"{flag} has no effect: {retired.why}"]
        assert options.given == {} and options.command == ["true"]


@pytest.mark.parametrize("retired", REFUSED, ids=lambda retired: retired.flag)
def test_flags_that_would_make_another_job_are_refused(
    retired: settings.Retired, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in retired.flags:
        with pytest.raises(SystemExit) as ended:
            parse_arguments([flag, *["5"] * retired.values, "-np", "1", "true"], {})
        assert ended.value.code == 2
        assert f"{flag} cannot be used: {retired.why}" in capsys.readouterr().err


def test_horovods_variables_without_a_meaning_get_a_line() -> None:
    environ = {"HOROVOD_MPI_THREADS_DISABLE": "1", "HOROVOD_CYCLE_TIME": ""}
    (line,) = parse_arguments(["-np", "1", "true"], environ).notices
    assert line.startswith("HOROVOD_MPI_THREADS_DISABLE has no effect: threads")


def test_horovods_controller_says_whether_mpi_starts_the_ranks() -> None:
    for word, tcp in (("gloo", True), ("GLOO", True), ("mpi", False)):
        assert settings.read({"HOROVOD_CONTROLLER": word})["tcp"] is tcp
    assert settings.read({"HOROVOD_CONTROLLER": "gloo", "HOROACC_TCP": "0"})["tcp"] is False
    with pytest.raises(
        SettingError, match="HOROVOD_CONTROLLER must be one of gloo, mpi, not 'nccl'"
    ):
        settings.read({"HOROVOD_CONTROLLER": "nccl"})


# Of Horovod's documentation, without the ones that its launcher alone sets and reads.
HOROVODS = re.findall(
    r"\w+",
    """
    FUSION_THRESHOLD CYCLE_TIME CACHE_CAPACITY HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER
    TORUS_ALLREDUCE AUTOTUNE AUTOTUNE_LOG AUTOTUNE_WARMUP_SAMPLES AUTOTUNE_STEPS_PER_SAMPLE
    AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE TIMELINE
    TIMELINE_MARK_CYCLES STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS
    STALL_SHUTDOWN_TIME_SECONDS MPI_THREADS_DISABLE NUM_NCCL_STREAMS THREAD_AFFINITY
    GLOO_TIMEOUT_SECONDS LOG_LEVEL LOG_HIDE_TIME CPU_OPERATIONS CONTROLLER BATCH_D2D_MEMCOPIES
    DISABLE_GROUP_FUSION DISABLE_NVTX_RANGES ENABLE_ASYNC_COMPLETION DYNAMIC_PROCESS_SETS
    ENABLE_XLA_OPS ADASUM_MPI_CHUNK_SIZE CCL_CACHE ELASTIC GLOO_IFACE START_TIMEOUT
    ELASTIC_TIMEOUT SPARK_START_TIMEOUT SPARK_USE_LOCAL_RANK_GPU_INDEX SPARK_PYTHONPATH
    SPARK_WORK_DIR
    """,
)


@pytest.mark.parametrize("name", [f"HOROVOD_{name}" for name in HOROVODS])
def test_every_variable_of_horovod_is_honoured_or_told(name: str) -> None:
    honoured = [setting for setting in TABLE if setting.horovod_env == name]
    told = settings.notices({name: "1"})
    assert len(honoured) + len(told) == 1
    assert not told or told[0].startswith(f"{name} has no effect: ")
    assert settings.notices({name: "0"}) == settings.notices({name: ""}) == []
    page = (ROOT / "docs" / "settings.md").read_text()
    assert f"`{name}`" in page


def test_every_variable_of_the_project_is_documented() -> None:
    """A variable that Python reads is a row of the table, or the launcher's own, or begins with an
    underscore: a process sets it for its own children."""
    known = {name for s in TABLE for name in (s.env, s.former_env, s.horovod_env)} | {
        b.env for b in BUILD
    }
    files = [
        ROOT / "setup.py",
        *(ROOT / "horoacc").rglob("*.py"),
        *(ROOT / "launcher").rglob("*.py"),
    ]
    named = {
        name
        for file in files
        for name in re.findall(r"(?<!_)HOROACC_[A-Z_]+[A-Z]", file.read_text())
    }
    assert {"HOROACC_BUILD_TYPE", "HOROACC_MPI_FETCH"} <= named & known
    readme = (ROOT / "launcher" / "README.md").read_text()
    launchers = {f"HOROACC{name}" for name in re.findall(r"`(?:HOROACC)?(_[A-Z_]+)`", readme)}
    launchers.add("HOROACC_OUTPUT_SOCKET")
    assert named - known - launchers == set()


def test_command_line_wins_over_file_over_environment(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("logging: \n  level: error\nparams:\n  arena: off\n")
    flags = ["--config-file", str(config), "--arena", "all", "-np", "1", "true"]
    environ = {"HOROACC_LOG_LEVEL": "debug", "HOROACC_ARENA": "off", "HOROACC_CONTROL": "tcp"}
    values = parse_arguments(flags, environ).values
    assert (values["arena"], values["log_level"], values["control"]) == ("all", "error", "tcp")
