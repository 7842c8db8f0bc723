//! Tests of the recording of a runtime's events: its content for known programs, and its
//! consistency while they run.

use std::time::{Duration, Instant};

use upshift::trace::{Coroutine, EventKind, Step, Timeline};
use upshift::{CoroutineId, Level, Runtime};

fn runtime(vcpus: usize) -> Runtime {
    Runtime::builder()
        .vcpus(vcpus)
        .name("traced")
        .build()
        .unwrap()
}

fn events_of(timeline: &Timeline, id: CoroutineId) -> Vec<(Step, Coroutine)> {
    let steps = timeline.events.iter().filter_map(|event| match event.kind {
        EventKind::Coroutine(step, coroutine) if coroutine.id == id => Some((step, coroutine)),
        _ => None,
    });
    steps.collect()
}

fn steps(timeline: &Timeline, id: CoroutineId) -> Vec<Step> {
    events_of(timeline, id)
        .into_iter()
        .map(|(step, _)| step)
        .collect()
}

/// Asserts that every track of the Chrome trace is balanced, and that every number is plausible.
/// Returns the trace.
fn assert_consistent(timeline: &Timeline) -> serde_json::Value {
    assert!(timeline.events.is_sorted_by_key(|event| event.at));
    for event in &timeline.events {
        assert!(event.vcpu < timeline.vcpus && event.at <= timeline.length);
        if let EventKind::Coroutine(_, coroutine) = event.kind {
            assert!(
                timeline.site_name(coroutine.site).contains(".rs:"),
                "{event:?}"
            );
        }
    }
    let mut out = Vec::new();
    timeline.write_chrome(&mut out).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let entries = json["traceEvents"].as_array().unwrap();
    for track in 0..=u64::from(timeline.vcpus) {
        let count = |phase: &str| {
            entries
                .iter()
                .filter(|entry| entry["tid"] == track && entry["ph"] == phase)
                .count()
        };
        assert_eq!(count("B"), count("E"), "track {track}");
    }
    json
}

#[test]
fn the_steps_of_a_coroutine_are_recorded_in_order() {
    use Step::{Blocked, Exited, Polled, Ready, Spawned, Yielded};
    let runtime = runtime(1);
    let trace = runtime.handle().trace();
    trace.start(1_000).unwrap();
    assert!(trace.is_on());
    let notify = std::sync::Arc::new(upshift::sync::Notify::new());
    let line = line!() + 4;
    let id = runtime.block_on(async {
        let child_notify = notify.clone();
        let child = async move { child_notify.notified().await };
        let child = upshift::spawn(child, Level::at::<5>());
        let id = child.id();
        upshift::yield_now().await;
        // The coroutine waits now.
        notify.notify_one();
        child.await.unwrap();
        id
    });
    let yielding_id = runtime.block_on(async {
        let child = upshift::spawn(upshift::yield_now(), Level::at::<7>());
        let id = child.id();
        child.await.unwrap();
        id
    });
    trace.stop();
    let timeline = trace.snapshot();
    assert_eq!(
        (timeline.lost, timeline.vcpus, timeline.name.as_str()),
        (0, 1, "traced")
    );
    assert_consistent(&timeline);
    let expected = [Spawned, Ready, Polled, Blocked, Ready, Polled, Exited];
    assert_eq!(steps(&timeline, id), expected);
    for (_, coroutine) in events_of(&timeline, id) {
        assert_eq!((coroutine.level.get(), coroutine.by), (5, Some(0)));
        let site = timeline.site_name(coroutine.site);
        assert!(site.starts_with(&format!("{}:{line}:", file!())), "{site}");
    }
    let expected = [Spawned, Ready, Polled, Yielded, Polled, Exited];
    assert_eq!(steps(&timeline, yielding_id), expected);
    // Events after the end of the recording are not recorded.
    runtime.block_on(async { upshift::spawn(async {}, Level::at::<1>()).await.unwrap() });
    assert_eq!(trace.snapshot(), timeline);
}

#[test]
fn steps_by_other_threads_and_events_that_a_vcpu_waits_for_are_recorded() {
    let runtime = runtime(1);
    let trace = runtime.handle().trace();
    trace.start(1_000).unwrap();
    let id = runtime.block_on(async {
        let (sender, receiver) = upshift::sync::oneshot::channel();
        let child = upshift::spawn(async move { receiver.await.unwrap() }, Level::at::<5>());
        let id = child.id();
        let thread = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            sender.send(7).unwrap();
        });
        assert_eq!(child.await.unwrap(), 7);
        thread.join().unwrap();
        // The second coroutine waits for a pipe, to which the main coroutine writes.
        let (mut reader, mut writer) = upshift::io::pipe().unwrap();
        let child = upshift::spawn(
            async move { read_byte(&mut reader).await },
            Level::at::<6>(),
        );
        upshift::time::sleep(Duration::from_millis(1)).await;
        write_byte(&mut writer).await;
        child.await.unwrap();
        id
    });
    trace.stop();
    let timeline = trace.snapshot();
    assert_consistent(&timeline);
    let outside = events_of(&timeline, id)
        .into_iter()
        .filter(|(_, coroutine)| coroutine.by.is_none());
    let outside: Vec<Step> = outside.map(|(step, _)| step).collect();
    assert_eq!(outside, [Step::Ready]);
    let kinds: Vec<EventKind> = timeline.events.iter().map(|event| event.kind).collect();
    let parks = kinds
        .iter()
        .filter(|kind| matches!(kind, EventKind::Parked))
        .count();
    let wakes = kinds
        .iter()
        .filter(|kind| matches!(kind, EventKind::Unparked))
        .count();
    assert!(
        parks >= 1 && wakes >= parks,
        "{parks} parks, {wakes} ends of parks"
    );
    assert!(
        kinds
            .iter()
            .any(|kind| matches!(kind, EventKind::Arrived(1..)))
    );
    // While the main coroutine waits for the message, which is sent after 20 ms, no event occurs.
    // Half of that time is asserted, as a margin.
    let pairs_after_parks = timeline
        .events
        .windows(2)
        .filter(|pair| pair[0].kind == EventKind::Parked);
    let gaps_ns = pairs_after_parks.map(|pair| pair[1].at - pair[0].at);
    let longest_ns = gaps_ns.max().unwrap();
    assert!(
        longest_ns >= 10_000_000,
        "the longest park took {longest_ns} ns"
    );
}

async fn read_byte(reader: &mut upshift::io::PipeReader) {
    use upshift::io::AsyncReadExt as _;
    let mut byte = [0];
    reader.read_exact(&mut byte).await.unwrap();
}

async fn write_byte(writer: &mut upshift::io::PipeWriter) {
    use upshift::io::AsyncWriteExt as _;
    writer.write_all(b"x").await.unwrap();
}

#[test]
fn the_oldest_events_are_overwritten_and_counted() {
    let runtime = runtime(1);
    let trace = runtime.handle().trace();
    trace.start(64).unwrap();
    let yields = 1_000;
    let id = runtime.block_on(async move {
        let child = upshift::spawn(
            async move {
                for _ in 0..yields {
                    upshift::yield_now().await;
                }
            },
            Level::at::<5>(),
        );
        let id = child.id();
        child.await.unwrap();
        id
    });
    trace.stop();
    let timeline = trace.snapshot();
    assert_consistent(&timeline);
    // The snapshot includes the polls that were running when its first event was recorded.
    assert!((64..=66).contains(&timeline.events.len()));
    // Each yield makes two events, and the main coroutine makes a few, too.
    assert!(
        timeline.lost >= 2 * yields - 64,
        "{} events lost",
        timeline.lost
    );
    assert_eq!(steps(&timeline, id).last(), Some(&Step::Exited));
    // A new recording starts empty, at any size.
    for size in [16, 4_096] {
        trace.start(size).unwrap();
        trace.stop();
        let timeline = trace.snapshot();
        assert_eq!(timeline.lost, 0);
        assert!(timeline.events.len() <= 2, "{timeline:?}");
    }
    assert!(trace.start(usize::MAX).is_err());
    assert!(!trace.is_on());
}

#[test]
fn a_busy_program_on_two_vcpus_is_recorded_while_it_runs() {
    let runtime = runtime(2);
    let trace = runtime.handle().trace();
    let recorder = trace.clone();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let reader = std::thread::spawn(move || {
        let (mut events, mut lost) = (0, 0);
        for round in 0..8 {
            recorder
                .start(if round % 2 == 0 { 256 } else { 8_192 })
                .unwrap();
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(3));
                let timeline = recorder.snapshot();
                assert_consistent(&timeline);
                events += timeline.events.len();
                lost += timeline.lost;
            }
        }
        recorder.stop();
        stopped.store(true, std::sync::atomic::Ordering::Relaxed);
        (events, lost)
    });
    let limit = Instant::now() + Duration::from_secs(60);
    runtime.block_on(async {
        while !stop.load(std::sync::atomic::Ordering::Relaxed) && Instant::now() < limit {
            let children: Vec<_> = (0..64)
                .map(|n| {
                    let level = Level::new(n % 8 * 8).unwrap();
                    upshift::spawn(
                        async {
                            for _ in 0..10 {
                                upshift::yield_now().await;
                            }
                        },
                        level,
                    )
                })
                .collect();
            for child in children {
                child.await.unwrap();
            }
        }
    });
    let (events, lost) = reader.join().unwrap();
    assert!(
        events > 1_000 && lost > 1_000,
        "{events} events recorded, {lost} lost"
    );
}

#[test]
fn a_poll_that_outlasts_the_recording_is_recorded() {
    let runtime = runtime(2);
    let trace = runtime.handle().trace();
    let (id_sender, id_receiver) = std::sync::mpsc::channel();
    let (end_sender, end_receiver) = std::sync::mpsc::channel::<()>();
    let child = runtime.handle().spawn(
        async move {
            id_sender.send(upshift::get_cid().unwrap()).unwrap();
            // The poll lasts until the test ends it.
            let _ = end_receiver.recv_timeout(Duration::from_secs(60));
        },
        Level::at::<40>(),
    );
    let child = child.unwrap();
    let id_of_child = id_receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    trace.start(64).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let timeline = trace.snapshot();
    end_sender.send(()).unwrap();
    assert_consistent(&timeline);
    let spans = running_spans(&timeline);
    assert!(
        spans
            .iter()
            .any(|(id, from, to)| (*id, *from, *to) == (id_of_child, 0, timeline.length)),
        "{timeline:?}"
    );
    runtime.block_on(async { child.await.unwrap() });
}

/// Returns the spans in which a coroutine ran, as tuples of its id, start and end.
fn running_spans(timeline: &Timeline) -> Vec<(CoroutineId, u64, u64)> {
    let spans = upshift::trace::Spans::of(timeline);
    let running = spans
        .states
        .iter()
        .filter(|span| span.state == upshift::State::Running);
    running.map(|span| (span.id, span.from, span.to)).collect()
}
