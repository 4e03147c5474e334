"""What is said of a job: what it waits for, who has it until when, and why its share changed."""

from __future__ import annotations

from gpud.core.explain import Explained, changes_of, explain, seconds
from gpud.core.replay import steps, write_header, write_line
from gpud.core.scheduler import Scheduler, Settings
from gpud.units import JobId
from tests.unit.core.driver import Driver

S = 1_000_000_000


def said(driver: Driver, job: int) -> list[str]:
    record = driver.job(job)
    return explain(
        record,
        driver.scheduler.devices[record.device],
        driver.now_ns,
        name=lambda one: f"job {one}",
        left_s=lambda one: 7.0 if one == 2 else None,
    )


def test_who_has_what_an_online_job_needs_and_until_when() -> None:
    driver = Driver(4)
    driver.online(2, "3", timeout_ns=60 * S)
    driver.offline(4)
    driver.now_ns = 10 * S
    driver.online(3, "2")
    assert said(driver, 3) == [
        "it is waiting, for 0 ms: needs 2 SMs, which are not free",
        "of the 4 SMs of device 0, online jobs have 3 SMs, offline jobs 1 SM",
        (
            "job 2 (online) has 3 SMs, for about 7.0 s more at its present rate, and for 50.0 s at "
            "most, by its timeout"
        ),
        "job 4 (offline) has 1 SM, nobody knows for how long",
    ]
    driver.online(5, "2")
    assert said(driver, 5)[-1] == "1 job waits in front of it"


def test_why_a_job_shrank_paused_and_grew() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.now_ns = 1 * S
    driver.online(2, "4")
    driver.left(1, 0)
    assert said(driver, 1)[:2] == [
        "it is paused, for 0 ms: online jobs have its capacity",
        "of the 4 SMs of device 0, online jobs have 4 SMs, offline jobs 0 SMs",
    ]
    driver.now_ns = 3 * S
    driver.done(2)
    driver.resize(1, quota="2")
    driver.now_ns = 4 * S
    assert said(driver, 1) == [
        "it is running, with 2 SMs of 2 SMs, its quota",
        "4.0 s ago: it started with 4 SMs",
        "3.0 s ago: it went from 4 SMs to 0 SMs, to make room for job 2, which is online",
        "1.0 s ago: it went from 0 SMs to 4 SMs, from what had come free",
        "1.0 s ago: it went from 4 SMs to 2 SMs, because its quota or reservation was changed",
    ]


def test_why_a_job_gave_to_another_and_to_a_cap() -> None:
    driver = Driver(4)
    driver.user(7, hold="4")
    driver.open(2, 7)
    driver.offline(1, session=2)
    driver.now_ns = S
    driver.offline(2)
    driver.at(S + S // 10)
    assert "from 4 SMs to 2 SMs, for other offline jobs" in said(driver, 1)[-1]
    driver.left(1, 2)
    driver.user(7, hold="1")
    assert "from 2 SMs to 1 SM, because its user had more" in said(driver, 1)[-1]


def test_that_a_job_moved_and_what_a_blocked_one_waits_for() -> None:
    driver = Driver(4)
    driver.offline(1, stream=1)
    driver.offline(2, stream=1)
    assert said(driver, 2) == ["it is blocked, for 0 ms: follows job 0.1 in its stream"]
    driver.fail(unstarted=(1,))
    lines = said(driver, 1)
    assert lines[0].endswith("device cpu:4 is being started")
    assert lines[-1].endswith("host was lost before the job began: it waits for the next")


def test_few_changes_are_kept_and_the_start_is_one_of_them() -> None:
    driver = Driver(8)
    driver.offline(1)
    for quota in range(1, 40):
        driver.resize(1, quota=str(1 + quota % 7))
        driver.left(1, driver.job(1).slices)
    changes = driver.job(1).changes
    assert len(changes) <= 12
    assert changes[0].first
    assert len(changes_of(changes, 0)) == 6


def test_a_replay_says_the_same() -> None:
    driver = Driver(4)
    scheduler = Scheduler(Settings())
    lines = [write_header(scheduler.settings)]

    def send(event: object) -> list[object]:
        commands = scheduler.handle(event)  # type: ignore[arg-type]
        lines.append(write_line(event, commands))  # type: ignore[arg-type]
        return commands  # type: ignore[return-value]

    driver.scheduler = scheduler
    driver.send = send  # type: ignore[method-assign, assignment]
    driver.up(0, 4)
    driver.open(1)
    driver.offline(1)
    driver.online(2, "3")
    live = explain(driver.job(1), scheduler.devices[0], scheduler.now_ns)
    explained = Explained(JobId(1))
    assert all(step.agrees for step in steps(lines, watch=explained))
    assert explained.lines == live
    driver.cancel(1)
    driver.ended(1)
    list(steps(lines, watch=explained))
    assert explained.lines[0] == "it is cancelled"
    assert explained.lines[1:] == changes_of(scheduler.finished[JobId(1)].changes, 0)


def test_times_for_people() -> None:
    texts = [seconds(value) for value in (0.0123, 0.9999, 59.96, 121, 7300)]
    assert texts == ["12 ms", "1.0 s", "60.0 s", "2 min", "2.0 h"]
