"""What the real trajectory API does, as far as we lean on it: if one of these fails, Atropos has changed."""

import gzip
import json
import math
import urllib.request

import pytest


def rows(count, tag=0, **columns):
    return {
        "tokens": [[tag, 2]] * count,
        "masks": [[-100, 2]] * count,
        "scores": [1.0] * count,
        **columns,
    }


def tags(batch):
    return [group["tokens"][0][0] for group in batch]


def test_an_environment_can_register_only_when_the_trainer_has_asked_for_a_batch(api):
    assert api.register_env()["status"] == "wait for trainer to start"
    api.start_trainer()
    assert api.register_env()["status"] == "success"


def test_environments_of_one_name_are_numbered_so_the_number_tells_whether_the_memory_knew_it(trained):
    assert [trained.register_env("a")["wandb_name"] for _ in range(2)] == ["a_0", "a_1"]


def test_a_restarted_api_knows_no_environment(api):
    api.start_trainer()
    api.register_env("a")
    api.kill()
    api.start()
    api.start_trainer()
    assert api.register_env("a")["wandb_name"] == "a_0"


def test_reset_data_forgets_environments_and_says_that_there_is_no_trainer(trained):
    trained.register_env("a")
    trained.get("/reset_data")
    assert trained.get("/info")["batch_size"] == -1
    trained.start_trainer()
    assert trained.register_env("a")["wandb_name"] == "a_0"


def test_the_answer_to_a_registration_says_how_many_steps_the_trainer_means_to_take(api):
    api.start_trainer(num_steps=7)
    assert api.register_env()["num_steps"] == 7


def test_rows_under_a_number_that_nobody_registered_are_taken_whatever_their_count(trained):
    assert trained.post("/scored_data", rows(4, env_id=99))["status"] == "received"
    assert [group["env_id"] for group in trained.take_batch()] == [99]


def test_rows_posted_before_the_trainer_registers_wedge_the_api(fresh_api):
    fresh_api.post("/scored_data", rows(4))
    fresh_api.start_trainer()
    assert "status" in fresh_api.get("/batch")
    assert fresh_api.register_env()["status"] == "wait for trainer to start"


def test_a_group_of_another_size_than_registered_is_held_back(trained):
    env_id = trained.register_env(group_size=4)["env_id"]
    assert trained.post("/scored_data", rows(3, env_id=env_id))["status"] == "buffered"
    assert trained.get("/status")["queue_size"] == 0


def test_one_group_of_an_odd_size_stops_every_batch(trained):
    trained.post("/scored_data", rows(5))
    for _ in range(3):
        trained.post("/scored_data", rows(4))
    assert trained.take_batch() is None


def test_one_row_groups_fill_every_batch(trained):
    env_id = trained.register_env(group_size=1)["env_id"]
    for tag in range(4):
        assert trained.post("/scored_data", rows(1, tag, env_id=env_id))["status"] == "received"
    assert tags(trained.take_batch()) == [0, 1, 2, 3]


def test_batches_are_formed_from_the_oldest_groups(trained):
    for tag in range(3):
        trained.post("/scored_data", rows(2, tag))
    assert tags(trained.take_batch()) == [0, 1]
    assert trained.get("/status")["queue_size"] == 1


def test_new_batches_are_formed_only_when_the_earlier_ones_were_handed_out(trained):
    for tag in range(2):
        trained.post("/scored_data", rows(4, tag))
    trained.take_batch()
    trained.post("/scored_data", rows(4, 2))
    assert trained.get("/status") == {"current_step": 2, "queue_size": 1}
    trained.take_batch()
    assert trained.get("/status") == {"current_step": 2, "queue_size": 1}
    trained.take_batch()
    assert trained.get("/status") == {"current_step": 3, "queue_size": 0}


def test_batches_formed_together_are_handed_out_newest_first(trained):
    for tag in range(3):
        trained.post("/scored_data", rows(4, tag))
    assert [tags(trained.take_batch()) for _ in range(3)] == [[2], [1], [0]]


def test_a_body_of_several_gzip_members_is_read_as_one(trained):
    body = json.dumps(rows(4)).encode()
    data = gzip.compress(b'{"env_id":7,') + gzip.compress(body[1:])
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    request = urllib.request.Request(trained.url + "/scored_data", data=data, headers=headers)
    urllib.request.urlopen(request, timeout=30).close()
    assert trained.take_batch()[0]["env_id"] == 7


def test_what_rides_along_reaches_the_batch(trained):
    columns = {
        "advantages": [[0.0, 0.5]] * 4,
        "inference_logprobs": [[1.0, -0.25]] * 4,
        "overrides": [{"group_id": "g", "turn_rewards": [None, 1.0]}] * 4,
        "group_overrides": {"group_size": 4},
        "messages": [[{"role": "assistant", "content": None, "reward": 0.5}]] * 4,
    }
    trained.post("/scored_data", rows(4, **columns))
    group = trained.take_batch()[0]
    assert {name: group[name] for name in columns} == columns


@pytest.mark.parametrize(
    "columns", [{"scores": [[1.0]] * 4}, {"overrides": [None] * 4}, {"inference_logprobs": [[None, 1.0]] * 4}]
)
def test_list_scores_and_nulls_are_refused(trained, columns):
    assert trained.call("POST", "/scored_data", rows(4) | columns)[0] == 422


def test_a_nan_is_accepted_and_then_destroys_the_batch(trained):
    assert trained.call("POST", "/scored_data", rows(4, advantages=[[math.nan, 0.0]] * 4))[0] == 200
    assert trained.call("GET", "/batch")[0] == 500
    assert trained.take_batch() is None


def test_disconnecting_takes_an_environments_weight_away(trained):
    first, second = (trained.register_env(name)["env_id"] for name in "ab")
    assert trained.post("/disconnect-env", {"env_id": first}) == {"status": "success"}
    assert trained.get("/status-env", {"env_id": second})["env_weight"] == 1.0


def test_the_status_of_a_number_that_nobody_has_is_a_500(trained):
    assert trained.call("GET", "/status-env", {"env_id": 0})[0] == 500


def test_the_status_of_an_environment_counts_all_groups_when_groups_have_several_rows(trained):
    ours, other = (trained.register_env(name)["env_id"] for name in "ab")
    for env_id in (ours, ours, other):
        trained.post("/scored_data", rows(4, env_id=env_id))
    assert trained.get("/status-env", {"env_id": ours})["queue_size"] == 3


def test_the_status_of_an_environment_counts_only_its_own_groups_when_they_have_one_row(trained):
    ours, other = (trained.register_env(name, group_size=1)["env_id"] for name in "ab")
    for env_id in (ours, ours, other):
        trained.post("/scored_data", rows(1, env_id=env_id))
    assert trained.get("/status-env", {"env_id": ours})["queue_size"] == 2


def test_the_status_of_an_environment_without_weight_is_a_500_where_it_is_alone(trained):
    alone = trained.register_env(weight=0.0)["env_id"]
    assert trained.call("GET", "/status-env", {"env_id": alone})[0] == 500


def test_a_share_of_the_batch_stops_every_batch_while_its_environment_has_no_group_queued(trained):
    trained.register_env("a", min_batch_allocation=0.5)
    other = trained.register_env("b")["env_id"]
    trained.post("/scored_data", rows(4, env_id=other))
    assert trained.take_batch() is None


def test_disconnecting_an_environment_frees_its_share(trained):
    owner = trained.register_env("a", min_batch_allocation=0.5)["env_id"]
    other = trained.register_env("b")["env_id"]
    trained.post("/scored_data", rows(4, env_id=other))
    trained.post("/disconnect-env", {"env_id": owner})
    assert trained.take_batch()


def test_a_share_that_a_former_registration_left_stops_the_batches_of_the_new_one(trained):
    trained.register_env("a", min_batch_allocation=0.5)
    again = trained.register_env("a", min_batch_allocation=0.5)["env_id"]
    trained.post("/scored_data", rows(4, env_id=again))
    assert trained.take_batch() is None


def test_a_share_takes_its_environments_groups_before_older_ones_of_others_but_in_their_order(trained):
    other = trained.register_env("b", group_size=1)["env_id"]
    owner = trained.register_env("a", group_size=1, min_batch_allocation=0.5)["env_id"]
    for tag, env_id in enumerate([other] * 4 + [owner] * 3):
        trained.post("/scored_data", rows(1, tag, env_id=env_id))
    assert tags(trained.take_batch()) == [4, 5, 0, 1]
