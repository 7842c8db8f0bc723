//! A canary that is silent although no registered process does anything: everything elevated on
//! its CPU rests, for every user.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_elevate::sys::{Kernel, SchedAttr, Sys};

use crate::attack::{
    ALICE, MALLORY, TRUDY, from_now, open_daemon, start_child, turn_with_two_cpus,
};
use crate::child::pin;
use crate::client::census;
use crate::kernel::long;
use crate::process::{elevated_threads, monotonic, until};

/// Puts the calling thread on `cpu`, at `priority` of SCHED_FIFO.
fn rise(cpu: usize, priority: u32) {
    pin(cpu);
    let attr = SchedAttr {
        policy: libc::SCHED_FIFO as u32,
        priority,
        ..SchedAttr::normal()
    };
    Kernel.sched_setattr(0, &attr).unwrap();
}

/// A priority below all threads of the daemon, and above the threads that it elevates here.
const BETWEEN: u32 = 40;

/// Lets a thread of this process occupy `cpu` at [`BETWEEN`] until the daemon demotes the threads
/// that are elevated there, as if one of them had lent its priority. Returns a moment before the
/// alarm.
fn take_until_an_alarm(cpu: usize, path: &Path) -> Instant {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rise(cpu, BETWEEN);
            let end = monotonic() + 400_000_000;
            while !is_over.load(Relaxed) && monotonic() < end {
                std::hint::spin_loop();
            }
            Kernel.sched_setattr(0, &SchedAttr::normal()).unwrap();
        });
        let end = Instant::now() + Duration::from_millis(400);
        let mut before = Instant::now();
        let alarms = census(path)["alarms"].clone();
        loop {
            let asked = Instant::now();
            if census(path)["alarms"] != alarms || asked >= end {
                break;
            }
            before = asked;
            std::thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Relaxed);
        before
    })
}

#[test]
fn everything_on_a_cpu_rests_for_a_second_when_its_canary_is_silent() {
    let Some((_turn, (_, there))) = turn_with_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("unknown");
    let _rival = start_child("ghost", &path, TRUDY, (there, 63), &[]);
    let mut innocent = start_child("burner", &path, ALICE, (there, 40), &long());
    let end = from_now(Duration::from_secs(4));
    innocent.go_until(end);
    until("it is elevated", || {
        !elevated_threads(innocent.pid()).is_empty()
    });
    let rests_until = take_until_an_alarm(there, &path) + Duration::from_secs(1);
    // A thread that registers now waits like the others, or registering would evade the rest.
    let mut newcomer = start_child("burner", &path, MALLORY, (there, 20), &long());
    newcomer.go_until(end);
    let mut looks = 0;
    loop {
        let is_resting = [&innocent, &newcomer]
            .iter()
            .all(|it| elevated_threads(it.pid()).is_empty());
        if Instant::now() >= rests_until {
            break;
        }
        assert!(is_resting, "{looks} looks");
        looks += 1;
    }
    assert!(looks > 10, "{looks} looks");
    until("the rest is over", || {
        !elevated_threads(newcomer.pid()).is_empty()
    });
}
