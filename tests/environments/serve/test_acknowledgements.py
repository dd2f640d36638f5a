"""A post is certain only when its batch must have been handed out."""

from environments.serve.delivery import Acknowledgements


def acknowledgements(*posts):
    made = Acknowledgements()
    made.add(posts)
    return made


def test_a_post_in_the_queue_is_not_certain():
    assert acknowledgements(1, 2).advance(step=5, queued=2) == []


def test_a_post_that_left_the_queue_may_wait_in_a_formed_batch():
    made = acknowledgements(1, 2)
    assert made.advance(step=5, queued=0) == []
    assert made.advance(step=5, queued=0) == []


def test_a_post_that_left_the_queue_is_certain_when_the_step_moves_on():
    made = acknowledgements(1, 2)
    made.advance(step=5, queued=0)
    assert made.advance(step=6, queued=0) == [1, 2]
    assert len(made) == 0


def test_the_oldest_posts_leave_the_queue_first():
    made = acknowledgements(1, 2, 3)
    made.advance(step=1, queued=1)
    assert made.advance(step=2, queued=1) == [1, 2]


def test_posts_of_other_environments_in_the_queue_only_delay_certainty():
    made = acknowledgements(1)
    made.advance(step=1, queued=7)
    assert made.advance(step=2, queued=7) == []


def test_an_api_that_lost_its_memory_makes_nothing_certain():
    made = acknowledgements(1)
    made.advance(step=1, queued=0)
    made.clear()
    assert made.advance(step=2, queued=0) == []


def test_posts_of_a_former_registration_are_counted_until_they_have_left_the_queue():
    made = acknowledgements(1, 2)
    made.register_anew()
    made.add([3])
    assert made.former == 2
    made.advance(step=5, queued=2)
    assert (made.former, made.queued) == (1, 2)
    made.advance(step=5, queued=1)
    assert made.former == 0
