//! Tests that the stall detector names the right location, both while a poll runs and after the
//! poll has ended.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use upshift::observe::Stall;
use upshift::{Builder, Handle, Level, Runtime, time};

/// Stall limit of the runtimes.
const LIMIT: Duration = Duration::from_millis(20);

/// Computes for about `time` of CPU time: a gap of more than 1 ms between two readings of the clock
/// counts as 1 ms. So a time in which the machine is stopped hardly counts: the watchdog, which
/// detects stalls, does not run then either.
fn burn(time: Duration) {
    let mut burnt = Duration::ZERO;
    let mut last = Instant::now();
    while burnt < time {
        let now = Instant::now();
        burnt += (now - last).min(Duration::from_millis(1));
        last = now;
    }
}

#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<Stall>>>);

impl Reports {
    fn listen(&self, builder: Builder) -> Builder {
        let reports = self.clone();
        builder
            .stall_limit(LIMIT)
            .on_stall(move |stall| reports.0.lock().unwrap().push(stall.clone()))
    }

    fn all(&self) -> Vec<Stall> {
        self.0.lock().unwrap().clone()
    }

    fn wait_for(&self, wanted: impl Fn(&Stall) -> bool) -> Option<Stall> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(stall) = self.all().into_iter().find(&wanted) {
                return Some(stall);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }
}

#[test]
fn a_report_of_an_ended_stall_names_location_level_and_id() {
    let reports = Reports::default();
    let runtime = reports.listen(Runtime::builder().vcpus(1)).build().unwrap();
    let (line, id) = runtime.block_on(async {
        let (line, handle) = (
            line!() + 1,
            upshift::spawn(async { burn(4 * LIMIT) }, Level::at::<7>()),
        );
        let id = handle.id();
        handle.await.unwrap();
        // This poll is short and must not be reported.
        upshift::spawn(async {}, Level::at::<7>()).await.unwrap();
        (line, id)
    });
    let stall = reports
        .wait_for(|stall| !stall.is_running && stall.id == id)
        .expect("the stall was not reported");
    assert_eq!(stall.level, Level::at::<7>());
    assert_eq!(stall.location.file(), file!());
    assert!(stall.location.line().abs_diff(line) <= 2, "{stall}");
    assert!(stall.duration >= 3 * LIMIT, "{stall}");
    assert_eq!(stall.vcpu, 0);
    assert!(stall.to_string().contains("tests/stalls.rs:"), "{stall}");
    let metrics = runtime.handle().metrics();
    assert_eq!(metrics.stalls.limit, LIMIT);
    assert!(metrics.stalls.count >= 1);
    let mut longest = metrics.stalls.longest.iter();
    let longest = longest.find(|poll| poll.id == id.to_string()).unwrap();
    assert_eq!(longest.location, stall.location.to_string());
    assert!(!longest.is_running);
    // Only stalls were reported. A poll while the machine is stopped is a stall, too.
    let stalled = |stall: &Stall| stall.id == id || stall.duration >= LIMIT;
    assert!(reports.all().iter().all(stalled), "{:?}", reports.all());
}

#[test]
fn a_stall_is_reported_before_the_poll_ends() {
    let reports = Reports::default();
    let runtime = reports.listen(Runtime::builder().vcpus(1)).build().unwrap();
    let handle = runtime.handle();
    let (release_sender, release_receiver) = std::sync::mpsc::channel::<()>();
    let observer = {
        let reports = reports.clone();
        std::thread::spawn(move || {
            let stall =
                reports.wait_for(|stall| stall.is_running && stall.level == Level::at::<9>());
            let metrics = handle.metrics();
            release_sender.send(()).unwrap();
            (stall, metrics)
        })
    };
    runtime.block_on(async {
        upshift::spawn(
            async move { release_receiver.recv().unwrap() },
            Level::at::<9>(),
        )
        .await
        .unwrap();
    });
    let (stall, metrics) = observer.join().unwrap();
    let stall = stall.expect("the stall was not reported while it lasted");
    assert!(stall.duration >= LIMIT);
    assert!(
        stall.to_string().ends_with("and is still running"),
        "{stall}"
    );
    let vcpu = &metrics.vcpus[0];
    assert_eq!(
        vcpu.polls_location.as_deref(),
        Some(&*stall.location.to_string())
    );
    assert!(vcpu.poll_age >= LIMIT);
    assert!(metrics.stalls.longest.iter().any(|poll| poll.is_running));
    let ended = reports
        .wait_for(|stall| !stall.is_running && stall.level == Level::at::<9>())
        .unwrap();
    assert_eq!(ended.id, stall.id);
}

#[test]
fn every_way_to_spawn_records_the_location() {
    let reports = Reports::default();
    let runtime = reports.listen(Runtime::builder().vcpus(1)).build().unwrap();
    let handle = runtime.handle();
    let stall = || burn(2 * LIMIT);
    let mut stalls = Vec::new();
    // If the machine is stopped for twice the limit, the watchdog may miss a stall. So the stalls
    // are repeated until all of them have been recorded.
    for _ in 0..10 {
        runtime.block_on(async {
            upshift::spawn(async move { stall() }, Level::DEFAULT)
                .await
                .unwrap();
            upshift::try_spawn(async move { stall() }, Level::DEFAULT)
                .unwrap()
                .await
                .unwrap();
            upshift::spawn_local(async move { stall() }, Level::DEFAULT)
                .await
                .unwrap();
            handle
                .spawn(async move { stall() }, Level::DEFAULT)
                .unwrap()
                .await
                .unwrap();
            stall();
        });
        stalls = runtime.handle().metrics().stalls.longest;
        // A short poll of the runtime itself may be listed, too.
        stalls.retain(|poll| poll.longest >= LIMIT);
        if stalls.len() >= 5 {
            break;
        }
    }
    assert_eq!(stalls.len(), 5, "{stalls:?}");
    assert!(
        stalls.iter().all(|poll| poll.location.starts_with(file!())),
        "{stalls:?}"
    );
}

#[test]
fn without_a_limit_and_warnings_no_stall_is_recorded() {
    let builder = Runtime::builder().vcpus(1).warnings(false);
    let runtime = builder.build().unwrap();
    runtime.block_on(async {
        upshift::spawn(async { burn(LIMIT) }, Level::DEFAULT)
            .await
            .unwrap();
    });
    let stalls = runtime.handle().metrics().stalls;
    assert_eq!((stalls.limit, stalls.count), (Duration::ZERO, 0));
    assert!(stalls.longest.is_empty());
}

#[test]
fn the_watchdog_sleeps_while_the_runtime_idles_and_wakes_for_a_stall() {
    let reports = Reports::default();
    let runtime = reports.listen(Runtime::builder().vcpus(1)).build().unwrap();
    let watchdog_switches = || {
        let mut switches = 0;
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            if read("comm").trim() == "sleepy-watchdog" {
                let status = read("status");
                let line = status
                    .lines()
                    .find(|line| line.starts_with("voluntary_ctxt"));
                switches += line
                    .unwrap()
                    .split_whitespace()
                    .last()
                    .unwrap()
                    .parse::<u64>()
                    .unwrap();
            }
        }
        switches
    };
    drop(runtime);
    let builder = reports.listen(Runtime::builder().vcpus(1).name("sleepy"));
    builder.build().unwrap().block_on(async {
        // The loop ends after an interval with few wake-ups. The watchdog sleeps only after it has
        // observed an idle runtime often enough.
        let mut wakeups = Vec::new();
        for _ in 0..20 {
            let before = watchdog_switches();
            time::sleep(Duration::from_millis(300)).await;
            wakeups.push(watchdog_switches() - before);
            // A watchdog that does not sleep would wake 60 times.
            if wakeups.last() <= Some(&25) {
                break;
            }
        }
        assert!(wakeups.last() <= Some(&25), "{wakeups:?} wake-ups");
        upshift::spawn(async { burn(4 * LIMIT) }, Level::at::<7>())
            .await
            .unwrap();
    });
    assert!(
        reports
            .wait_for(|stall| stall.level == Level::at::<7>())
            .is_some()
    );
}

#[test]
fn a_callback_that_panics_is_called_again() {
    let calls = Arc::new(Mutex::new(0));
    let calls_in_callback = calls.clone();
    let runtime = Runtime::builder()
        .vcpus(1)
        .stall_limit(Duration::from_millis(1))
        .on_stall(move |_| {
            *calls_in_callback.lock().unwrap() += 1;
            panic!("for the test");
        })
        .build()
        .unwrap();
    runtime.block_on(async {
        for _ in 0..100 {
            upshift::spawn(async { burn(LIMIT) }, Level::DEFAULT)
                .await
                .unwrap();
            if *calls.lock().unwrap() >= 2 {
                return;
            }
        }
        panic!("the callback was not called again");
    });
    drop(runtime);
    // No runtime is left on this thread.
    let handle = Handle::current();
    assert!(handle.is_err());
}
