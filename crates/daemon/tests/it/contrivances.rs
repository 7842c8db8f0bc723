//! Attackers that lend their priority by ways of their own, or whose size makes the daemon work. `docs/threat-model.md` names these tests.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use upshift_board::wire::Role;
use upshift_daemon::{Assign, Bound, Config, Daemon, Reservation};
use upshift_elevate::current_tid;

use crate::assign::rule;
use crate::attacks::{
    ALICE, MALLORY, TRUDY, from_now, open_config, takes_at_most, two_cpus, villain,
};
use crate::beside::{TIME, barred_until, bystander, us};
use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::hostile::census;
use crate::process::{monotonic, used_by_threads};
use crate::villain::Foothold;
use crate::{permitted, socket, turn};

/// Two words in the first 4 GiB, where calls of 32 bits reach them.
fn low_words() -> &'static [AtomicU32; 2] {
    // SAFETY: a fresh anonymous mapping of a page, which stays.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        #[cfg(target_arch = "x86_64")]
        let flags = flags | libc::MAP_32BIT;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let address = libc::mmap(std::ptr::null_mut(), 4096, both, flags, -1, 0);
        assert_ne!(address, libc::MAP_FAILED);
        &*address.cast()
    }
}

/// The calls of a lock, as programs of 64 bits or as those of 32 bits make them.
fn futex(word: &AtomicU32, operation: i32, value: u32, other: Option<&AtomicU32>) -> i64 {
    let other = other.map_or(std::ptr::null_mut(), AtomicU32::as_ptr);
    #[cfg(target_arch = "x86_64")]
    if setting("CALL") == "of 32 bits" {
        let result: i64;
        // SAFETY: the call of 32 bits with the number 240 is futex; all addresses are low. No time limit, which is also the second value.
        unsafe {
            std::arch::asm!(
                "push rbx", "mov ebx, {word:e}", "int 0x80", "pop rbx",
                word = in(reg) word.as_ptr() as usize as u32,
                inlateout("rax") 240i64 => result,
                in("ecx") operation, in("edx") value, in("esi") 0, in("edi") other as usize as u32,
            );
        }
        return result;
    }
    // SAFETY: live words, and no time limit, which is also the second value.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            0,
            other,
            0,
        )
    }
}

/// As `lender`: the main thread waits for a lock of a thread that burns on `VICTIM`, by the calls that `CALL` names; in pieces of `BURN` µs, after
/// each of which nothing is lent for `REST` µs. With `EXCUSES` elevated threads that do nothing end meanwhile, one after the other.
pub(crate) fn contriver() {
    pin(number("CPU") as usize);
    let it = Foothold::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let requeued = setting("CALL") == "requeued";
    let [lock, gate] = low_words();
    let owner = AtomicU32::new(0);
    let (burn, rest) = (number("BURN") * 1000, number("REST"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(number("VICTIM") as usize);
            let before = cpu_time();
            while monotonic() < deadline {
                lock.store(current_tid() as u32, Release);
                owner.store(1, Release);
                if requeued {
                    let move_one = || futex(gate, libc::FUTEX_CMP_REQUEUE_PI, 1, Some(lock));
                    while move_one() < 1 && monotonic() < deadline {
                        std::thread::yield_now();
                    }
                }
                let end = (monotonic() + burn).min(deadline);
                while monotonic() < end {
                    std::hint::spin_loop();
                }
                owner.store(0, Release);
                futex(lock, libc::FUTEX_UNLOCK_PI, 0, None);
                std::thread::sleep(Duration::from_micros(rest));
            }
            println!("used {}", (cpu_time() - before) / 1000);
            owner.store(2, Release);
        });
        if setting("EXCUSES") == "true" {
            scope.spawn(|| {
                while monotonic() < deadline {
                    let short = || {
                        it.add_current(Role::Worker);
                        std::thread::sleep(Duration::from_millis(5));
                    };
                    scope.spawn(short).join().unwrap();
                }
            });
        }
        loop {
            match owner.load(Acquire) {
                0 => std::thread::sleep(Duration::from_micros(50)),
                1 if requeued => {
                    futex(gate, libc::FUTEX_WAIT_REQUEUE_PI, 0, Some(lock));
                    futex(lock, libc::FUTEX_UNLOCK_PI, 0, None);
                }
                1 => {
                    futex(lock, libc::FUTEX_LOCK_PI, 0, None);
                    futex(lock, libc::FUTEX_UNLOCK_PI, 0, None);
                }
                _ => break,
            }
        }
    });
    drop(it);
    wait_for_go();
}

/// What a contriver gets on CPU 0, µs, with the users that are barred.
fn contrive(
    call: &str,
    (burn, rest): (u64, u64),
    excuses: bool,
    time: Duration,
) -> (u64, BTreeSet<u64>) {
    let path = socket("contriver");
    let _daemon = Daemon::start(open_config("contriver")).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let honest = villain("ghost", &path, ALICE, (0, 20), &[]);
    let mut bystander = bystander(&path, 0);
    let more = [
        ("CALL", call.to_string()),
        ("VICTIM", "0".to_string()),
        ("BURN", burn.to_string()),
        ("REST", rest.to_string()),
        ("EXCUSES", excuses.to_string()),
    ];
    let mut contriver = villain("contriver", &path, MALLORY, (0, 40), &more);
    let end = from_now(time);
    bystander.go_until(end);
    contriver.go_until(end);
    let barred = barred_until(end, &path);
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let burnt = contriver.number("used ");
    let seen = census(&path);
    println!(
        "{call}, {burn} and {rest} us: {burnt}, bystander {used} us of {}, longest gap {longest} us, {} alarms, barred {barred:?}",
        time.as_micros(),
        seen["alarms"]
    );
    drop(honest);
    (burnt, barred)
}

#[test]
fn a_priority_lent_by_calls_of_another_kind_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for call in ["plain", "requeued", "of 32 bits"] {
        let (burnt, barred) = contrive(call, (2_000_000, 1000), false, TIME);
        assert!(takes_at_most(75, burnt, us()));
        assert_eq!(barred, BTreeSet::from([u64::from(MALLORY)]), "{call}");
    }
}

/// Whether the attacker is among those that are barred. If other programs leave it little it is not noticed; where scouts, which are ordinary, do
/// not come to look in time, others are suspects as well.
fn is_found(barred: &BTreeSet<u64>) -> bool {
    barred.is_empty() || barred.contains(&u64::from(MALLORY))
}

#[test]
fn a_priority_lent_in_pieces_is_taken_back_by_the_odds() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let time = 2 * TIME;
    for pieces in [(70_000, 1000), (15_000, 200)] {
        let (burnt, barred) = contrive("plain", pieces, false, time);
        assert!(takes_at_most(85, burnt, time.as_micros() as u64));
        assert!(is_found(&barred), "{barred:?}");
    }
}

#[test]
fn threads_that_end_excuse_no_priority_lent_in_pieces() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let time = 2 * TIME;
    let (burnt, barred) = contrive("plain", (70_000, 1000), true, time);
    assert!(takes_at_most(85, burnt, time.as_micros() as u64));
    assert!(is_found(&barred), "{barred:?}");
}

/// A program that no rule fits holds a lock and burns on `VICTIM`; its child, which the rule for `donor` gives a deadline, waits for that lock.
pub(crate) fn donor() {
    // SAFETY: all 0 is a word.
    let lock: &'static AtomicU32 = unsafe { crate::child::shared() };
    // SAFETY: plain calls; the child has one thread and ends with its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above, with a live text.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::prctl(libc::PR_SET_NAME, c"donor".as_ptr());
            while libc::sched_getscheduler(0) & 0xff != libc::SCHED_DEADLINE {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        while lock.load(Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        futex(lock, libc::FUTEX_LOCK_PI, 0, None);
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    println!("ready");
    let deadline = wait_for_go();
    pin(number("VICTIM") as usize);
    lock.store(current_tid() as u32, Release);
    while lock.load(Acquire) & libc::FUTEX_WAITERS == 0 && monotonic() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let waits = lock.load(Acquire) & libc::FUTEX_WAITERS != 0;
    let before = cpu_time();
    while monotonic() < deadline {
        std::hint::spin_loop();
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("lent {waits}");
    // SAFETY: a child that has not been waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    wait_for_go();
}

#[test]
fn deadlines_that_are_lent_are_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("donor");
    let ms = Duration::from_millis;
    let rule = Assign {
        bound: Bound::Deadline(Reservation {
            runtime: ms(6),
            deadline: ms(20),
            period: ms(20),
        }),
        comm: Some("donor".into()),
        ..rule(MALLORY, 8)
    };
    let _daemon = Daemon::start(Config {
        assign: vec![rule],
        ..open_config("donor")
    })
    .unwrap();
    let (here, there) = two_cpus();
    // On each of the CPUs: a donor that is taken back to ordinary threads shares with it.
    let mut bystanders = [here, there].map(|cpu| bystander(&path, cpu));
    let mut donors = [here, there].map(|victim| {
        let more = [("VICTIM", victim.to_string()), ("CALL", "plain".into())];
        villain("donor", &path, MALLORY, (here, 40), &more)
    });
    let end = from_now(TIME);
    bystanders.iter_mut().for_each(|it| it.go_until(end));
    donors.iter_mut().for_each(|it| it.go_until(end));
    let used = bystanders.each_mut().map(|it| it.number("used "));
    let longest = bystanders.each_mut().map(|it| it.number("longest "));
    let burnt = donors.each_mut().map(|it| it.number("used "));
    let lent = donors.each_mut().map(|it| it.line("lent ").unwrap());
    let alarms = census(&path)["alarms"].as_u64().unwrap();
    println!(
        "donors {burnt:?} ({lent:?}), bystanders {used:?} us of {}, longest gaps {longest:?} us, {alarms} alarms",
        us()
    );
    for burnt in burnt {
        assert!(takes_at_most(75, burnt, us()));
    }
    if lent.iter().any(|it| it == "true") {
        assert!(alarms > 0);
    }
}

#[test]
fn a_program_of_thousands_of_threads_keeps_the_thread_of_the_rules_within_its_budget() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("thousands");
    let _daemon = Daemon::start(Config {
        assign: vec![rule(MALLORY, 8)],
        ..open_config("thousands")
    })
    .unwrap();
    let threads = [("THREADS", "14000".to_string())];
    let _crowd = villain("sleepers", &path, MALLORY, (0, 0), &threads);
    std::thread::sleep(Duration::from_secs(1));
    let (began, before) = (monotonic(), used_by_threads("upshift-assign"));
    std::thread::sleep(Duration::from_secs(2));
    let (used, time) = (
        used_by_threads("upshift-assign") - before,
        monotonic() - began,
    );
    println!("{used} of {time} ns");
    assert!(used * 10 < time * 3, "{used} of {time} ns");
}
