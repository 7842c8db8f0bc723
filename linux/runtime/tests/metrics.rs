//! Tests that the metrics of a runtime agree with a known load, within wide margins.

use std::time::{Duration, Instant};

use upshift::metrics::Metrics;
use upshift::{Builder, Handle, Level, Preemption, Runtime, time};

const URGENT: Level = Level::at::<3>();
/// Level of less urgent work. It is more urgent than the main coroutine, so that a join lends
/// nothing.
const BACKGROUND: Level = Level::at::<20>();

fn runtime(vcpus: usize) -> Runtime {
    // Without tokio, there is no coroutine that waits for the first use of tokio.
    let builder = Runtime::builder().vcpus(vcpus).tokio(false);
    builder.build().unwrap()
}

fn burn(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn metrics() -> Metrics {
    Handle::current().unwrap().metrics()
}

#[test]
fn levels_count_polls_run_time_and_waits() {
    runtime(1).block_on(async {
        let before = metrics();
        let background = upshift::spawn(async { burn(Duration::from_millis(20)) }, BACKGROUND);
        let urgent = upshift::spawn(
            async {
                for _ in 0..9 {
                    upshift::yield_now().await;
                }
            },
            URGENT,
        );
        urgent.await.unwrap();
        background.await.unwrap();
        // The sleep reads the clock, which completes the times of the last polls.
        time::sleep(Duration::from_millis(1)).await;
        let interval = metrics().since(&before);
        let urgent = interval.level(URGENT).unwrap();
        assert_eq!(urgent.polls, 10);
        assert_eq!(urgent.wait.count(), 10);
        let background = interval.level(BACKGROUND).unwrap();
        assert_eq!(background.polls, 1);
        // Up to four polls in a row share a reading of the clock, so the test checks the sum of all
        // levels, with a margin of 1 ms.
        let run: Duration = interval.levels.iter().map(|level| level.run).sum();
        assert!(run >= Duration::from_millis(19), "{run:?} of run time");
        assert_eq!(background.ready + background.running, 0);
        assert_eq!(interval.coroutines.spawned, 2);
        assert_eq!(interval.coroutines.exited, 2);
        assert!(interval.level(Level::at::<7>()).is_none());
    });
}

#[test]
fn the_wait_behind_a_long_poll_is_recorded() {
    runtime(1).block_on(async {
        let long = upshift::spawn(async { burn(Duration::from_millis(30)) }, BACKGROUND);
        let behind = upshift::spawn(async {}, BACKGROUND);
        behind.await.unwrap();
        long.await.unwrap();
        let metrics = metrics();
        let background = metrics.level(BACKGROUND).unwrap();
        let longest = background.wait.quantile(1.0);
        // The long poll takes 30 ms, and the histogram rounds down to a bucket.
        assert!(
            longest >= Duration::from_millis(23),
            "the longest wait is {longest:?}"
        );
        let text = metrics.prometheus().to_string();
        assert!(text.contains("upshift_level_wait_seconds_count{level=\"20\"} 2\n"));
        // The first coroutine waited for less time, unless the machine was stopped.
        let bucket = "upshift_level_wait_seconds_bucket{level=\"20\",le=\"0.01\"}";
        assert!(
            [0, 1]
                .iter()
                .any(|n| text.contains(&format!("{bucket} {n}\n")))
        );
    });
}

#[test]
fn coroutines_are_counted_by_state() {
    runtime(1).block_on(async {
        let sleepers: Vec<_> = (0..5)
            .map(|_| upshift::spawn(time::sleep(Duration::from_secs(60)), URGENT))
            .collect();
        time::sleep(Duration::from_millis(5)).await;
        let ready: Vec<_> = (0..3)
            .map(|_| upshift::spawn(async {}, BACKGROUND))
            .collect();
        let snapshot = metrics();
        let coroutines = snapshot.coroutines;
        // The number includes the calling coroutine, which runs.
        assert_eq!(coroutines.live, 9);
        assert_eq!(coroutines.blocked, 5);
        assert_eq!(coroutines.ready, 3);
        assert_eq!(coroutines.running, 1);
        assert_eq!(coroutines.suspended, 0);
        assert_eq!(snapshot.level(BACKGROUND).unwrap().ready, 3);
        assert_eq!(snapshot.level(Level::DEFAULT).unwrap().running, 1);
        assert_eq!(snapshot.occupied(), BACKGROUND.bit() | Level::DEFAULT.bit());
        for sleeper in &sleepers {
            sleeper.cancel();
        }
        for handle in sleepers {
            let _ = handle.await;
        }
        for handle in ready {
            handle.await.unwrap();
        }
        let panics = upshift::spawn(async { panic!("counted") }, BACKGROUND);
        assert!(panics.await.is_err());
        let coroutines = metrics().coroutines;
        assert_eq!(coroutines.live, 1);
        assert_eq!(coroutines.panicked, 1);
        assert_eq!(coroutines.exited, 9);
    });
}

#[test]
fn a_computing_vcpu_is_busier_than_a_sleeping_vcpu() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        check_utilisation(Runtime::builder().vcpus(1).preemption(preemption));
    }
}

fn check_utilisation(builder: Builder) {
    let runtime = builder.build().unwrap();
    let handle = runtime.handle();
    runtime.block_on(async {
        let before = metrics();
        for _ in 0..10 {
            time::sleep(Duration::from_millis(20)).await;
        }
        let slept = metrics().since(&before).vcpus[0].clone();
        assert!(slept.parks >= 1);
        assert!(slept.ring.enters >= 1);
        assert_eq!(slept.ring.overflows, 0);

        let before = metrics();
        for _ in 0..10 {
            burn(Duration::from_millis(20));
            upshift::yield_now().await;
        }
        let computed = metrics().since(&before).vcpus[0].clone();
        // Each round computes for 20 ms, under any load. The vCPU sleeps at most between rounds.
        assert!(
            computed.polling >= Duration::from_millis(100),
            "{computed:?}"
        );
        // Other programs may have the CPU while the vCPU is about to sleep, which counts as busy.
        assert!(
            slept.utilisation() < computed.utilisation(),
            "{slept:?}, {computed:?}"
        );
        let sum = computed.busy + computed.parked + computed.spin;
        // The times are rounded to ticks.
        assert!(sum.abs_diff(computed.in_service) < Duration::from_micros(1));
    });
    // This snapshot is taken while no vCPU runs.
    let metrics = handle.metrics();
    assert_eq!(metrics.coroutines.running, 0);
    assert!(metrics.uptime >= Duration::from_millis(200));
}

#[test]
fn a_snapshot_is_taken_while_a_poll_holds_the_vcpu() {
    let runtime = runtime(1);
    let handle = runtime.handle();
    let (began_sender, began_receiver) = std::sync::mpsc::channel();
    let (continue_sender, continue_receiver) = std::sync::mpsc::channel::<()>();
    let observer = std::thread::spawn(move || {
        began_receiver.recv().unwrap();
        let metrics = handle.metrics();
        continue_sender.send(()).unwrap();
        metrics
    });
    runtime.block_on(async {
        let blocking_poll = upshift::spawn(
            async move {
                began_sender.send(()).unwrap();
                continue_receiver.recv().unwrap();
            },
            BACKGROUND,
        );
        blocking_poll.await.unwrap();
    });
    let metrics = observer.join().unwrap();
    assert_eq!(metrics.level(BACKGROUND).unwrap().running, 1);
    assert_eq!(metrics.vcpus[0].running, Some(BACKGROUND));
}

#[test]
fn released_vcpus_keep_their_metrics() {
    runtime(1).block_on(async {
        upshift::alloc_cpu().unwrap();
        let limit = Instant::now() + Duration::from_secs(30);
        while !metrics().vcpus[1].active && Instant::now() < limit {
            time::sleep(Duration::from_millis(1)).await;
        }
        time::sleep(Duration::from_millis(20)).await;
        assert!(metrics().vcpus[1].active);
        upshift::release_cpu().unwrap();
        while metrics().vcpus[1].active && Instant::now() < limit {
            time::sleep(Duration::from_millis(1)).await;
        }
        let released = metrics().vcpus[1].clone();
        assert!(!released.active);
        assert!(
            released.in_service >= Duration::from_millis(10),
            "{released:?}"
        );
        assert_eq!(metrics().vcpus.len(), 2);
    });
}

#[test]
fn a_snapshot_survives_serialisation() {
    runtime(2).block_on(async {
        upshift::spawn(async { burn(Duration::from_millis(2)) }, BACKGROUND)
            .await
            .unwrap();
        let metrics = metrics();
        let text = serde_json::to_string(&metrics).unwrap();
        let parsed: Metrics = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed, metrics);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(json["levels"][0]["run_ns"].is_u64());
        assert!(json["vcpus"][1]["ring"]["in_flight"].is_u64());
        let invalid = text.replacen("\"level\":", "\"level\":9", 1);
        assert!(serde_json::from_str::<Metrics>(&invalid).is_err());
    });
}
