"""The watermark of a task with several inputs, as claims."""

import random

from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.taskmanager.watermark_valve import Progress, WatermarkValve


def test_the_minimum_over_the_channels_counts():
    v = WatermarkValve(2)
    assert v.on_watermark(0, 10) == Progress()
    assert v.on_watermark(1, 5) == Progress(watermark=5)
    assert v.on_watermark(1, 20) == Progress(watermark=10)


def test_a_watermark_never_goes_back():
    v = WatermarkValve(1)
    v.on_watermark(0, 10)
    assert v.on_watermark(0, 9) == Progress()
    assert v.on_watermark(0, 10) == Progress()


def test_an_idle_channel_is_left_out():
    v = WatermarkValve(2)
    v.on_watermark(0, 10)
    assert v.on_status(1, idle=True) == Progress(watermark=10)


def test_all_idle_lets_the_highest_go_and_says_so():
    v = WatermarkValve(2)
    v.on_watermark(0, 10)
    v.on_watermark(1, 20)
    assert v.on_status(0, True) == Progress(watermark=20)
    assert v.on_status(1, True) == Progress(idle=True)
    assert v.on_status(0, False) == Progress(idle=False)


def test_a_channel_that_comes_back_counts_once_it_has_caught_up():
    v = WatermarkValve(2)
    v.on_watermark(0, 10)
    v.on_status(1, True)  # 10 is out
    v.on_status(1, False)
    assert v.on_watermark(1, 3) == Progress(), "behind: left out"
    assert v.on_watermark(0, 15) == Progress(watermark=15)
    assert v.on_watermark(1, 15) == Progress()
    assert v.on_watermark(0, 30) == Progress(), "it counts again"
    assert v.on_watermark(1, 18) == Progress(watermark=18)


def test_random_histories_only_grow_and_never_pass_an_active_caught_up_channel():
    for seed in range(300):
        rng = random.Random(seed)
        n = rng.randint(1, 4)
        v, out = WatermarkValve(n), MIN_WATERMARK
        for _ in range(100):
            c = rng.randrange(n)
            p = v.on_status(c, rng.random() < 0.5) if rng.random() < 0.3 else v.on_watermark(c, rng.randint(0, 60))
            if p.watermark is not None:
                assert p.watermark > out, f"seed {seed}"
                out = p.watermark
            active = [x.watermark for x in v.channels if not x.idle and x.caught_up]
            assert not active or out <= min(active), f"seed {seed}"


def test_the_end_of_time_waits_for_idle_channels():
    v = WatermarkValve(2)
    v.on_watermark(1, 5)
    v.on_watermark(0, 10)
    v.on_status(1, True)  # 10 is out
    assert v.on_watermark(0, MAX_WATERMARK) == Progress(watermark=MAX_WATERMARK - 1)
    assert v.on_status(1, False) == Progress()
    assert v.on_watermark(1, 20) == Progress()
    assert v.on_watermark(1, MAX_WATERMARK) == Progress(watermark=MAX_WATERMARK)
    v = WatermarkValve(2)
    v.on_watermark(0, MAX_WATERMARK)
    v.on_status(0, True)
    assert v.on_status(1, True) == Progress(watermark=MAX_WATERMARK - 1, idle=True)
