"""The scheduler benchmark's load has every type of event, and a replay of it agrees."""

from __future__ import annotations

from bench.bench_scheduler import decisions, measure_replay
from bench.load.scheduler_events import LoadGenerator
from gpud.core.scheduler import Scheduler, Settings


def test_the_load_is_valid_and_keeps_as_many_jobs_alive() -> None:
    scheduler = Scheduler(Settings(debug=True))
    driver = LoadGenerator(scheduler.handle, 50)
    driver.fill()
    for _ in range(500):
        driver.step()
    assert list(driver.alive) == list(scheduler.jobs)
    assert 45 <= len(scheduler.jobs) <= 50
    assert any(job.online for job in scheduler.jobs.values())


def test_decisions_are_timed_by_kind() -> None:
    found = decisions(20, 300)
    assert found["live_jobs"] == 20
    kinds = {"BlocksLeft", "CancelRequested", "JobEnded", "JobSubmitted", "ResizeRequested", "all"}
    assert set(found["kinds"]) == kinds
    for times in found["kinds"].values():
        assert times["p99_us"] >= times["p50_us"] > 0
    assert found["kinds"]["all"]["events"] >= 300


def test_a_replay_in_another_process_agrees() -> None:
    found = measure_replay(300)
    assert found["events"] >= 300
    assert found["differences"] == 0
