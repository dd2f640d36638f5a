from typing import Literal

import pytest
from atroposlib.envs.base import APIServerConfig
from pydantic import Field

from environments.config import AgentEnvConfig, ServerConfig
from tests.tables import cases
from tools.errors import ConfigError
from turnwise.cli.settings import Overrides, merge_settings, read_yaml, split_overrides


class MyConfig(AgentEnvConfig):
    weights: dict[str, float] = Field(default={"a": 1.0}, description="Weights.")
    colour: Literal["red", "blue"] = Field(default="red", description="Colour.")


def merged(*args, config=None, servers=None, file=None):
    overrides, rest = split_overrides(args)
    assert rest == []
    servers = [ServerConfig()] if servers is None else servers
    return merge_settings((config or MyConfig(), servers), file, overrides)


def yaml_file(tmp_path, text):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return path


@cases(
    ("args", "name", "value"),
    [
        (["--env.group_size", "7"], "group_size", 7),
        (["--env.group_size=7"], "group_size", 7),
        (["--env.group_size", "7", "--env.group_size", "8"], "group_size", 8),
        (["--env.total_steps", "-1"], "total_steps", -1),
        (["--env.use_wandb"], "use_wandb", True),
        (["--env.use_wandb", "--env.seed", "1"], "use_wandb", True),
        (["--env.use_wandb=false"], "use_wandb", False),
        (["--env.dataset_path", "a=b.jsonl"], "dataset_path", "a=b.jsonl"),
        (["--env.dataset_path=--odd"], "dataset_path", "--odd"),
        (["--env.max_items", "None"], "max_items", None),
        (["--env.enabled_toolsets", "terminal, file"], "enabled_toolsets", ["terminal", "file"]),
        (["--env.enabled_toolsets", '["terminal"]'], "enabled_toolsets", ["terminal"]),
        (["--env.enabled_toolsets", "None"], "enabled_toolsets", None),
        (["--env.enabled_toolsets="], "enabled_toolsets", []),
        (["--env.weights", '{"b": 2}'], "weights", {"b": 2.0}),
        (["--env.weights.b", "2"], "weights", {"a": 1.0, "b": 2.0}),
        (["--env.estimator_params.gamma", "0.5"], "estimator_params", {"gamma": "0.5"}),
        (["--env.batch_size", "-1"], "group_size", 4),
        (["--env.colour", "blue"], "colour", "blue"),
    ],
)
def test_a_dotted_flag_sets_its_field(args, name, value):
    assert getattr(merged(*args).env, name) == value


def test_what_is_no_dotted_flag_is_left_in_its_order():
    args = ["code_debug", "--env.seed", "3", "--fresh", "--out", "x.jsonl"]
    assert split_overrides(args)[1] == ["code_debug", "--fresh", "--out", "x.jsonl"]


def test_the_command_line_wins_over_yaml_and_yaml_over_the_class(tmp_path):
    file = read_yaml(yaml_file(tmp_path, "env:\n  group_size: 5\n  seed: 5\n"))
    env = merged("--env.seed", "6", config=MyConfig(group_size=9, seed=9, max_turns=9), file=file).env
    assert (env.group_size, env.seed, env.max_turns) == (5, 6, 9)
    assert type(env) is MyConfig


@cases(
    ("args", "said"),
    [
        (["--env.group_sise", "4"], "no setting --env.group_sise; did you mean --env.group_size?"),
        (["--env.temperature", "0"], "no setting --env.temperature; did you mean --openai.temperature?"),
        (["--openai.base_ulr", "x"], "no setting --openai.base_ulr; did you mean --openai.base_url?"),
        (["--openai.max_tokens", "9"], "no setting --openai.max_tokens; set --env.max_tokens_per_turn"),
        (["--env.group_size", "0"], "--env.group_size should be greater than or equal to 1, got '0'"),
        (["--env.group_size", "many"], "--env.group_size should be a valid integer"),
        (["--openai.temperature", "nan"], "--openai.temperature should be"),
        (["--env.branch_at", "now"], "got 'now'; or it should be 'draw' or 'hook'"),
        (["--env.colour", "green"], "--env.colour should be 'red' or 'blue', got 'green'"),
        (["--env.group_size"], "--env.group_size needs a value"),
        (["--env.weights", "b=2"], "--env.weights is not valid JSON"),
        (["--env.seed", "None"], "--env.seed should be a valid integer, got None"),
        (["--env.estimator_power", "2"], "--env.estimator_params.power"),
        (["--env.max_turns", "0", "--env.group_size", "0"], "; --env.max_turns "),
    ],
)
def test_a_wrong_setting_is_one_line_with_flag_value_and_what_is_possible(args, said):
    with pytest.raises(ConfigError) as error:
        merged(*args)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_flag_of_another_namespace_is_refused():
    with pytest.raises(
        ConfigError, match=r"no option --evn\.seed; settings are --env\.NAME, --openai\.NAME, "
    ):
        split_overrides(["--evn.seed", "4"])


TWO_SERVERS = "openai:\n- {base_url: http://a}\n- {base_url: http://b}\n"


@cases(
    ("text", "args", "said"),
    [
        ("env:\n  group_size: 0\n", (), r"env\.group_size in .*settings\.yaml should be greater"),
        ("env:\n  max_turn: 3\n", (), r"no setting env\.max_turn in .*did you mean env\.max_turns\?"),
        (TWO_SERVERS, ("--openai.base_url", "http://c"), "names one server, but 2 are configured"),
    ],
)
def test_a_wrong_value_in_yaml_is_named_with_its_file(tmp_path, text, args, said):
    with pytest.raises(ConfigError, match=said):
        merged(*args, file=read_yaml(yaml_file(tmp_path, text)))


@cases("text", ["[a, b]", "a, b", "'a,b'"])
def test_a_list_in_yaml_may_be_written_as_on_the_command_line(tmp_path, text):
    path = yaml_file(tmp_path, f"env:\n  condenser: {text}\n")
    assert merged(file=read_yaml(path)).env.condenser == ["a", "b"]


@cases(
    ("text", "said"),
    [
        ("evn: {}\n", "no section 'evn' in .*did you mean env?"),
        ("- env\n", "must be a mapping of names to values, got "),
        ("env: 4\n", "env in .* must be a mapping"),
        ("openai: [4]\n", "a server of openai in .* must be a mapping"),
        ("env: {a: [}\n", "is not YAML"),
        ("env:\n  seed: 1\n  max_turns: 2\n  seed: 3\n", "'seed' stands twice, line 4, column 3"),
        ("slurm: true\n", "no section 'slurm'"),
        ("env:\n  a: 2026-13-45\n", "is not YAML"),
        ("env: " + "[" * 5_000, "is not YAML"),
    ],
)
def test_a_settings_file_of_another_shape_is_refused_in_one_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said) as error:
        read_yaml(yaml_file(tmp_path, text))
    assert "\n" not in str(error.value)


@cases(
    "text",
    [
        "openai:\n  api_key: 'sk-of-mine\n",
        "openai: sk-of-mine\n",
        "openai:\n  api_key: *sk-of-mine\n",
        "openai:\n  api_key: !sk-of-mine x\n",
        "openai:\n  api_key: !!int sk-of-mine\n",
        "openai:\n  api_key: !!timestamp sk-of-mine\n",
        "openai:\n  extra_body: {api_key: sk-of-mine}\n",
        "openai:\n  base_url: http://h/v1\n  extra_body: {model: sk-of-mine}\n",
    ],
)
def test_a_refused_settings_file_shows_no_key(tmp_path, text):
    with pytest.raises(ConfigError) as error:
        merged(file=read_yaml(yaml_file(tmp_path, text)))
    assert "sk-of-mine" not in str(error.value)


def test_a_refused_mapping_on_the_command_line_shows_no_key():
    with pytest.raises(ConfigError, match=r"extra_body is not valid JSON: .* at column \d+$"):
        merged("--openai.extra_body", '{"authorization": "sk-of-mine"')


def test_a_missing_settings_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read --config .*gone\.yaml"):
        read_yaml(tmp_path / "gone.yaml")


def test_an_empty_settings_file_changes_nothing(tmp_path):
    assert merged(file=read_yaml(yaml_file(tmp_path, ""))) == merged()


def test_atropos_switches_may_stand_in_yaml_when_they_are_off(tmp_path):
    path = yaml_file(tmp_path, "slurm: false\ntesting: false\nenv: {seed: 2}\n")
    assert read_yaml(path).of("env") == {"seed": 2}


def test_a_base_url_on_the_command_line_makes_a_server():
    assert [server.base_url for server in merged().servers] == [""]
    (server,) = merged("--openai.base_url", "http://h/v1", "--openai.model_name", "m").servers
    assert (server.base_url, server.model_name, server.api_key) == ("http://h/v1", "m", "none")


def test_a_server_in_atropos_words_becomes_one_in_ours():
    theirs = APIServerConfig(base_url="http://h/v1", model_name="m", num_max_requests_at_once=3)
    (server,) = merged(servers=theirs).servers
    assert server == ServerConfig(
        base_url="http://h/v1", model_name="m", api_key="", num_max_requests_at_once=3
    )


def test_a_server_setting_of_the_class_that_does_nothing_is_told_as_a_warning(caplog):
    merged(servers=[APIServerConfig(base_url="http://h/v1", num_requests_for_eval=256)])
    assert "config_init sets num_requests_for_eval, which has no effect in Turnwise" in caplog.text


@cases("value", ["", "3", "[gamma]"])
def test_parameters_that_are_no_mapping_are_refused_and_none_at_all_are_not(tmp_path, value):
    path = yaml_file(tmp_path, f"env:\n  estimator_params: {value}\n")
    if value:
        with pytest.raises(ConfigError, match=r"env.estimator_params in .* must be a mapping"):
            merged("--env.estimator_params.gamma", "0.3", file=read_yaml(path))
    else:
        env = merged("--env.estimator_params.gamma", "0.3", file=read_yaml(path)).env
        assert env.estimator_params == {"gamma": "0.3"}


@cases("flag", ["--env.estimator_params", "--env.estimator_params.outcome_weight"])
def test_parameters_of_the_class_stay_beside_those_that_are_given(flag):
    config = MyConfig(estimator_params={"gamma": 0.5})
    value = "0.2" if flag.endswith("weight") else '{"outcome_weight": 0.2}'
    params = merged(flag, value, config=config).env.estimator_params
    assert {name: float(number) for name, number in params.items()} == {"gamma": 0.5, "outcome_weight": 0.2}


def test_none_unsets_a_parameter():
    config = MyConfig(estimator_params={"gamma": 0.5})
    assert merged("--env.estimator_params.gamma", "None", config=config).env.estimator_params == {}


def test_a_value_of_many_possible_kinds_has_one_problem(tmp_path):
    path = yaml_file(tmp_path, "env: {min_batch_allocation: [1]}\n")
    with pytest.raises(ConfigError) as refusal:
        merged(file=read_yaml(path))
    assert str(refusal.value).count("min_batch_allocation") == 1


@cases(
    ("flag", "instead"),
    [("health_check=maybe", "asked once before a run"), ("timeout=5", "--env.request_timeout_s")],
)
def test_a_server_setting_that_does_nothing_is_refused_in_one_line(flag, instead):
    name = flag.partition("=")[0]
    with pytest.raises(ConfigError, match=f"--openai.{name} has no effect in Turnwise: .*{instead}"):
        merged(f"--openai.{flag}")


@cases("flag", ["--env.group_size.x", "--env.nothing.x", "--env.seed.0", "--env.estimator_params."])
def test_an_entry_of_what_is_no_mapping_is_refused(flag):
    with pytest.raises(ConfigError, match=f"no setting {flag}"):
        merged(flag, "1")


def test_parameters_in_yaml_and_on_the_command_line_are_joined_and_the_command_line_wins(tmp_path):
    path = yaml_file(tmp_path, "env: {estimator_params: {gamma: 0.5, scale: none}}\n")
    env = merged("--env.estimator_params.gamma", "0.9", file=read_yaml(path)).env
    assert env.estimator_params == {"gamma": "0.9", "scale": "none"}


def test_yaml_may_list_several_servers_and_flags_reach_all_of_them(tmp_path):
    path = yaml_file(tmp_path, TWO_SERVERS)
    servers = merged("--openai.api_key", "k", file=read_yaml(path)).servers
    assert [(server.base_url, server.api_key) for server in servers] == [("http://a", "k"), ("http://b", "k")]


def test_servers_of_the_class_stay_when_nothing_is_given():
    servers = [ServerConfig(base_url="http://a"), ServerConfig(base_url="http://b")]
    assert merged(servers=servers).servers == servers


def test_yaml_overrides_the_server_of_the_class_field_by_field(tmp_path):
    default = ServerConfig(base_url="http://a", model_name="m", num_max_requests_at_once=5)
    file = Overrides(sections={"openai": {"model_name": "n"}}, origin="f.yaml")
    (server,) = merged(servers=[default], file=file).servers
    assert (server.base_url, server.model_name, server.num_max_requests_at_once) == ("http://a", "n", 5)
