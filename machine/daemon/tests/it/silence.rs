//! Tests of a CPU on which the canary is silent, although no registered process is the cause. A
//! canary is a thread of the daemon with the lowest real-time priority, so it is silent while
//! elevated threads occupy its CPU. All elevated threads on the CPU must be demoted, regardless of
//! their users.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_elevate::sys::{Kernel, SchedAttr, Sys};

use crate::attack::{
    ALICE, MALLORY, TRUDY, deadline_after, open_daemon, serial_test_on_two_cpus, start_child,
};
use crate::child::pin;
use crate::client::census;
use crate::kernel::long_fifo_limit;
use crate::process::{elevated_threads, monotonic, wait_until};

fn elevate_this_thread(cpu: usize, priority: u32) {
    pin(cpu);
    let attr = SchedAttr {
        policy: libc::SCHED_FIFO as u32,
        priority,
        ..SchedAttr::normal()
    };
    Kernel.sched_setattr(0, &attr).unwrap();
}

/// Priority of the thread that occupies the CPU. It is below all threads of the daemon, and above
/// the threads that the daemon elevates in this test.
const OCCUPIER_PRIORITY: u32 = 40;

/// Occupies `cpu` with a thread at [`OCCUPIER_PRIORITY`] until a canary raises an alarm. Returns a
/// time before the alarm.
fn occupy_until_alarm(cpu: usize, path: &Path) -> Instant {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            elevate_this_thread(cpu, OCCUPIER_PRIORITY);
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
            let requested = Instant::now();
            if census(path)["alarms"] != alarms || requested >= end {
                break;
            }
            before = requested;
            std::thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Relaxed);
        before
    })
}

#[test]
fn all_threads_on_a_cpu_are_demoted_for_a_second_when_its_canary_is_silent() {
    let Some((_guard, (_, last_cpu))) = serial_test_on_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("unknown");
    let _rival = start_child("idle-claimant", &path, TRUDY, (last_cpu, 63), &[]);
    let mut first_client = start_child("burner", &path, ALICE, (last_cpu, 40), &long_fifo_limit());
    let end = deadline_after(Duration::from_secs(4));
    first_client.run_until(end);
    wait_until("the first client is elevated", || {
        !elevated_threads(first_client.pid()).is_empty()
    });
    let demoted_until = occupy_until_alarm(last_cpu, &path) + Duration::from_secs(1);
    // A thread that registers during the demotion is not elevated either, because registering again
    // would otherwise evade the demotion.
    let mut newcomer = start_child("burner", &path, MALLORY, (last_cpu, 20), &long_fifo_limit());
    newcomer.run_until(end);
    let mut checks = 0;
    loop {
        let are_demoted = [&first_client, &newcomer]
            .iter()
            .all(|client| elevated_threads(client.pid()).is_empty());
        if Instant::now() >= demoted_until {
            break;
        }
        assert!(are_demoted, "a thread is elevated after {checks} checks");
        checks += 1;
    }
    assert!(checks > 10, "only {checks} checks during the demotion");
    wait_until("the demotion has ended", || {
        !elevated_threads(newcomer.pid()).is_empty()
    });
}
