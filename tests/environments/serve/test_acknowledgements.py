"""A post is certain only when its batch must have been handed out."""

from environments.serve.delivery import Acknowledgements
from tests.tables import cases


def acknowledgements(*posts):
    made = Acknowledgements()
    made.add(posts)
    return made


@cases(
    ("posts", "queued", "certain"),
    [
        ((1, 2), [(5, 2)], []),  # in the queue
        ((1, 2), [(5, 0), (5, 0)], []),  # it may wait in a batch that was formed
        ((1, 2), [(5, 0), (6, 0)], [1, 2]),  # the step moved on
        ((1, 2, 3), [(1, 1), (2, 1)], [1, 2]),  # the oldest leave first
        ((1,), [(1, 7), (2, 7)], []),  # posts of other environments only delay it
    ],
)
def test_a_post_is_certain_when_it_has_left_the_queue_and_the_step_moved_on(posts, queued, certain):
    made = acknowledgements(*posts)
    found = [made.advance(step=step, queued=count) for step, count in queued]
    assert (found[-1], any(found[:-1]), len(made)) == (certain, False, len(posts) - len(certain))


def test_an_api_that_lost_its_memory_makes_nothing_certain():
    made = acknowledgements(1)
    made.advance(step=1, queued=0)
    made.clear()
    assert made.advance(step=2, queued=0) == []


def test_posts_of_a_former_registration_are_counted_until_they_have_left_the_queue():
    made = acknowledgements(1, 2)
    made.mark_former()
    made.add([3])
    assert made.former == 2
    made.advance(step=5, queued=2)
    assert (made.former, made.queued) == (1, 2)
    made.advance(step=5, queued=1)
    assert made.former == 0
