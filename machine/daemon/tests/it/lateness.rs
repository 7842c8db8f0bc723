//! A CPU that stands still for the daemon's scheduler, too: a thread above both has it, as the kernel's throttling or the host of a virtual machine
//! would. That proves nothing against an innocent user; a true culprit is found all the same. `docs/threat-model.md` names these tests.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use upshift_board::NOTHING;
use upshift_board::wire::Role;
use upshift_elevate::current_tid;
use upshift_elevate::sys::{Kernel, SchedAttr, Sys};

use crate::attack::{
    ALICE, MALLORY, TRUDY, barred_until, daemon_with_rules, from_now, open_daemon, start_child,
    turn_with_two_cpus,
};
use crate::child::{pin, setting, wait_for_go};
use crate::client::{Registration, census};
use crate::kernel::long;
use crate::process::{elevated_threads, monotonic, until};

/// Above everything of the daemon.
const ABOVE: u32 = 60;

/// Puts the calling thread on `cpu`, at that priority of SCHED_FIFO.
fn rise(cpu: usize, priority: u32) {
    pin(cpu);
    let attr = SchedAttr {
        policy: libc::SCHED_FIFO as u32,
        priority,
        ..SchedAttr::normal()
    };
    Kernel.sched_setattr(0, &attr).unwrap();
}

/// Until `end` a thread of this process has `cpu` for `busy` of each `period`, above the daemon; joined, it says how often.
fn hold_up<'scope>(
    scope: &'scope Scope<'scope, '_>,
    cpu: usize,
    (busy, period): (Duration, Duration),
    end: u64,
) -> ScopedJoinHandle<'scope, u64> {
    assert!(busy * 10 <= period * 9, "others have the rest");
    scope.spawn(move || {
        rise(cpu, ABOVE);
        let mut times = 0;
        while monotonic() < end {
            let until = monotonic() + busy.as_nanos() as u64;
            while monotonic() < until {
                std::hint::spin_loop();
            }
            times += 1;
            std::thread::sleep(period - busy);
        }
        Kernel.sched_setattr(0, &SchedAttr::normal()).unwrap();
        times
    })
}

#[test]
fn a_cpu_that_stands_still_for_its_scheduler_bars_lenders_only() {
    let Some((_turn, (here, there))) = turn_with_two_cpus() else {
        return;
    };
    let ms = Duration::from_millis;
    for (times, lends) in [((115, 400), false), ((30, 100), true)] {
        let (path, _daemon) = daemon_with_rules("lateness", vec![]);
        let _rivals = [here, there].map(|cpu| start_child("ghost", &path, TRUDY, (cpu, 63), &[]));
        let mut innocent = start_child("burner", &path, ALICE, (there, 40), &long());
        let mut lender = lends.then(|| {
            let more = [("VICTIM", there.to_string())];
            start_child("lender", &path, MALLORY, (here, 40), &more)
        });
        let end = from_now(ms(3000));
        innocent.go_until(end);
        lender.iter_mut().for_each(|it| it.go_until(end));
        let (barred, held_up) = std::thread::scope(|scope| {
            let times = (ms(times.0), ms(times.1));
            let above = hold_up(scope, there, times, end);
            (barred_until(end, &path), above.join().unwrap())
        });
        let seen = census(&path);
        println!(
            "held up {held_up} times for {} ms: {} alarms, barred {barred:?}, innocent {} us",
            times.0,
            seen["alarms"],
            innocent.number("used ")
        );
        assert!(seen["alarms"].as_u64() > Some(0), "a canary was silent");
        let culprits = match lends {
            true => BTreeSet::from([u64::from(MALLORY)]),
            false => BTreeSet::new(),
        };
        assert_eq!(barred, culprits);
    }
}

/// Computes as a worker, and lets a dispatcher end without a word after each `EACH` ms (100), which has used nothing.
pub(crate) fn forgetful() {
    let cpu = crate::child::number("CPU") as usize;
    pin(cpu);
    let each = Duration::from_millis(setting("EACH").parse().unwrap_or(100));
    let it = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let mut ended = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while monotonic() < deadline {
                let short = || {
                    assert!(it.add_current(Role::Dispatcher));
                    std::thread::sleep(each);
                };
                scope.spawn(short).join().unwrap();
                ended += 1;
            }
        });
        while monotonic() < deadline {
            std::hint::spin_loop();
        }
    });
    println!("ended {ended}");
    it.run(NOTHING);
    wait_for_go();
}

#[test]
fn dispatchers_that_end_before_a_late_look_bar_no_user() {
    let Some((_turn, (_, there))) = turn_with_two_cpus() else {
        return;
    };
    let ms = Duration::from_millis;
    let (path, _daemon) = open_daemon("forgetful");
    let _rival = start_child("ghost", &path, TRUDY, (there, 63), &[]);
    let mut innocent = start_child("forgetful", &path, ALICE, (there, 40), &long());
    let end = from_now(ms(3000));
    innocent.go_until(end);
    let barred = std::thread::scope(|scope| {
        // A look is due each 36 ms, so each comes too late.
        let above = hold_up(scope, there, (ms(170), ms(200)), end);
        let barred = barred_until(end, &path);
        above.join().unwrap();
        barred
    });
    let ended = innocent.number("ended ");
    let seen = census(&path);
    println!("{ended} dispatchers ended, {} alarms", seen["alarms"]);
    assert!(ended > 3, "{ended}");
    // Before: a debt of 0.2 s for the first one.
    assert_eq!((barred, &seen["ejected"]), (BTreeSet::new(), &0.into()));
}

/// Below everything of the daemon, and above what it elevates here.
const BETWEEN: u32 = 40;

/// A thread of this process has `cpu` at [`BETWEEN`] until the daemon demotes what is elevated there: as if that had lent it its priority in a way that is
/// not known.
fn take_until_an_alarm(cpu: usize, path: &Path) {
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
        while census(path)["alarms"] == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Relaxed);
    });
}

#[test]
fn what_takes_a_cpu_in_an_unknown_way_has_all_rest_and_none_barred() {
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
    take_until_an_alarm(there, &path);
    let rests_until = Instant::now() + Duration::from_millis(800);
    assert_eq!(census(&path)["alarms"], 1);
    // A thread that registers now waits like the others, or it would be a way to go on.
    let mut newcomer = start_child("burner", &path, MALLORY, (there, 20), &long());
    newcomer.go_until(end);
    let mut looks = 0;
    while Instant::now() < rests_until {
        for it in [&innocent, &newcomer] {
            assert!(elevated_threads(it.pid()).is_empty(), "{looks} looks");
        }
        looks += 1;
    }
    assert!(looks > 10, "{looks} looks");
    until("the rest is over", || {
        !elevated_threads(newcomer.pid()).is_empty()
    });
    assert_eq!(census(&path)["barred"], serde_json::json!([]));
}

#[test]
fn a_rest_ends_although_another_program_keeps_the_cpu() {
    let Some((_turn, (here, there))) = turn_with_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("rest");
    let _rivals = [here, there].map(|cpu| start_child("ghost", &path, TRUDY, (cpu, 63), &[]));
    let mut innocents =
        [here, there].map(|cpu| start_child("burner", &path, ALICE, (cpu, 40), &long()));
    let end = from_now(Duration::from_secs(4));
    innocents.iter_mut().for_each(|it| it.go_until(end));
    // An ordinary thread would run in breaths only, in which they are not elevated.
    rise(here, BETWEEN);
    until("they are elevated", || {
        innocents
            .iter()
            .all(|it| !elevated_threads(it.pid()).is_empty())
    });
    take_until_an_alarm(there, &path);
    let began = Instant::now();
    let ms = Duration::from_millis;
    // It rests by now. A program that is none of the daemon's keeps the canary silent until long after that.
    std::thread::sleep(ms(300));
    std::thread::scope(|scope| {
        let hog = scope.spawn(|| {
            rise(there, BETWEEN);
            while began.elapsed() < ms(1700) {
                std::hint::spin_loop();
            }
            Kernel.sched_setattr(0, &SchedAttr::normal()).unwrap();
        });
        let mut elevated = None;
        while !hog.is_finished() {
            // It is not while a breath is under way.
            if began.elapsed() > ms(900) && !elevated_threads(innocents[0].pid()).is_empty() {
                elevated.get_or_insert(began.elapsed());
            }
            std::thread::sleep(ms(5));
        }
        println!("elevated after {elevated:?}, {}", census(&path)["alarms"]);
        assert!(elevated.is_some_and(|it| it < ms(1500)), "{elevated:?}");
    });
    Kernel.sched_setattr(0, &SchedAttr::normal()).unwrap();
    assert_eq!(census(&path)["barred"], serde_json::json!([]));
}
