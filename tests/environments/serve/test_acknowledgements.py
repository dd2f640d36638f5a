"""A post is certain only when its batch must have been handed out."""

from environments.serve.acknowledgements import Receipts


def receipts(*posts):
    made = Receipts()
    made.sent(posts)
    return made


def test_a_post_in_the_queue_is_not_certain():
    assert receipts(1, 2).seen(step=5, queued=2) == []


def test_a_post_that_left_the_queue_may_wait_in_a_formed_batch():
    made = receipts(1, 2)
    assert made.seen(step=5, queued=0) == []
    assert made.seen(step=5, queued=0) == []


def test_a_post_that_left_the_queue_is_certain_when_the_step_moves_on():
    made = receipts(1, 2)
    made.seen(step=5, queued=0)
    assert made.seen(step=6, queued=0) == [1, 2]
    assert len(made) == 0


def test_the_oldest_posts_leave_the_queue_first():
    made = receipts(1, 2, 3)
    made.seen(step=1, queued=1)
    assert made.seen(step=2, queued=1) == [1, 2]


def test_posts_of_other_environments_in_the_queue_only_delay_certainty():
    made = receipts(1)
    made.seen(step=1, queued=7)
    assert made.seen(step=2, queued=7) == []


def test_an_api_that_lost_its_memory_makes_nothing_certain():
    made = receipts(1)
    made.seen(step=1, queued=0)
    made.forget()
    assert made.seen(step=2, queued=0) == []


def test_posts_of_a_former_registration_are_counted_until_they_have_left_the_queue():
    made = receipts(1, 2)
    made.renumbered()
    made.sent([3])
    assert made.former == 2
    made.seen(step=5, queued=2)
    assert (made.former, made.queued) == (1, 2)
    made.seen(step=5, queued=1)
    assert made.former == 0
