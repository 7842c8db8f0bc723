//! Attackers whose main thread has gone, that have the kernel work for them, or that ask again and again. `docs/threat-model.md` names
//! these tests.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use upshift_board::os;
use upshift_board::wire::{self, Reply, Role, Thread};
use upshift_daemon::{Assign, Config, Daemon};
use upshift_elevate::sys::Kernel;
use upshift_elevate::{Class, Policy, current_tid};

use crate::assign::{assigned, deadline_rule, rule};
use crate::attacks::{
    ALICE, Fifth, MALLORY, TRUDY, from_now, gets_a_fifth, open_config, takes_at_most, villain,
};
use crate::beside::{TIME, beside, bystander, us};
use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::hostile::{census, processes};
use crate::process::{PATIENCE, Process, monotonic, until};
use crate::protocol::{connect, register};
use crate::quiet::used_by_the_scheduler;
use crate::villain::{Foothold, sleepers_behind};
use crate::{directory, permitted, skipped, socket, turn};

/// Ends the main thread of this process, and nothing else.
fn end_main_thread() {
    extern "C" fn end(_: libc::c_int) {
        // SAFETY: ends the thread that the signal was sent to.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let own = std::process::id() as i32;
    assert_ne!(own, current_tid());
    // SAFETY: a handler that makes one call; a signal to a thread of this process.
    unsafe {
        let end: extern "C" fn(libc::c_int) = end;
        libc::signal(libc::SIGUSR1, end as libc::sighandler_t);
        libc::syscall(libc::SYS_tgkill, own, own, libc::SIGUSR1);
    }
    let stat = format!("/proc/{own}/stat");
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends its main thread when it is told to, registers if `JOINS` is set, and burns until the deadline.
pub(crate) fn headless() {
    pin(number("CPU") as usize);
    println!("ready");
    wait_for_go();
    end_main_thread();
    let it = (setting("JOINS") == "1").then(|| Foothold::new(&[(current_tid(), Role::Worker)]));
    println!("headless");
    let deadline = wait_for_go();
    let before = cpu_time();
    while monotonic() < deadline {
        std::hint::spin_loop();
    }
    println!("used {}", (cpu_time() - before) / 1000);
    drop(it);
    wait_for_go();
}

/// The same, without its main thread; `prepare` comes while it still has it.
fn without_main_thread(
    path: &Path,
    user: u32,
    joins: bool,
    prepare: impl FnOnce(&Process),
) -> Process {
    let joins = [("JOINS", u8::from(joins).to_string())];
    let mut it = villain("headless", path, user, (0, 2), &joins);
    prepare(&it);
    it.say("0");
    it.line("headless").unwrap();
    it
}

#[test]
fn who_ends_its_main_thread_keeps_the_quota_of_its_cgroup() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for joins in [true, false] {
        let path = socket("headless");
        let config = Config {
            assign: vec![rule(ALICE, 8)],
            ..open_config("headless")
        };
        let _daemon = Daemon::start(config).unwrap();
        let Some(fifth) = Fifth::new() else {
            return skipped("no cgroup with a CPU quota can be made");
        };
        let mut taken = false;
        let user = if joins { MALLORY } else { ALICE };
        let burner = without_main_thread(&path, user, joins, |it| taken = fifth.take(it));
        if !taken {
            return skipped("a process cannot be moved to a cgroup");
        }
        let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
        std::thread::sleep(Duration::from_millis(1100));
        gets_a_fifth(burner);
    }
}

#[test]
fn who_ends_its_main_thread_keeps_the_level_of_its_rule() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("rule");
    let config = Config {
        assign: vec![rule(MALLORY, 40)],
        ..open_config("rule")
    };
    let _daemon = Daemon::start(config).unwrap();
    let _it = without_main_thread(&path, MALLORY, true, |_| {});
    let seen = census(&path);
    assert_eq!(seen["processes"][0]["ceiling"], 40, "{seen}");
    let program = without_main_thread(&path, MALLORY, false, |_| {});
    // Longer than everything is looked through again.
    until("it is assigned", || {
        assigned(&census(&path), program.pid()).is_some()
    });
}

#[test]
fn who_ends_its_main_thread_leaves_no_bound_with_it() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("reserved");
    let config = Config {
        assign: vec![Assign {
            comm: None,
            ..deadline_rule()
        }],
        ..open_config("reserved")
    };
    let _daemon = Daemon::start(config).unwrap();
    let mut bystander = bystander(&path, 0);
    let mut burner = without_main_thread(&path, ALICE, false, |it| {
        until("its main thread has a deadline", || {
            Policy::of(&Kernel, it.pid()).is_ok_and(|it| it.class() == Class::Deadline)
        });
    });
    let end = from_now(TIME);
    bystander.go_until(end);
    burner.go_until(end);
    let (used, burnt) = (bystander.number("used "), burner.number("used "));
    println!("bystander {used} us, burner {burnt} us with 6 of 20 ms");
    // 6 of 20 ms, and half of the rest.
    assert!(takes_at_most(75, burnt, us()));
}

/// Registers, and sends itself packets that it does not read until the deadline: what the kernel does for each is done in its name.
pub(crate) fn torrent() {
    pin(number("CPU") as usize);
    let _it = Foothold::new(&[(current_tid(), Role::Worker)]);
    let sink = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let source = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    source.connect(sink.local_addr().unwrap()).unwrap();
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    let bytes = [0u8; 1400];
    let mut sent = 0u64;
    while monotonic() < deadline {
        sent += u64::from(source.send(&bytes).is_ok());
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("sent {sent}");
    wait_for_go();
}

#[test]
fn who_has_the_kernel_move_packets_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let burnt = beside("torrent", "torrent", &[]);
    assert!(takes_at_most(97, burnt, us()));
}

/// Changes its name as fast as it can until the deadline, in as many threads as `THREADS`: how often.
pub(crate) fn namer() {
    println!("ready");
    let deadline = wait_for_go();
    let changes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..number("THREADS") {
            scope.spawn(|| {
                while monotonic() < deadline {
                    for name in [c"one", c"another"] {
                        // SAFETY: a live text.
                        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
                    }
                    changes.fetch_add(2, Relaxed);
                }
            });
        }
    });
    println!("changes {}", changes.load(Relaxed));
    wait_for_go();
}

#[test]
fn who_changes_its_name_without_end_holds_up_no_rule_and_little_of_a_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("namer");
    let config = Config {
        assign: vec![rule(ALICE, 8)],
        ..open_config("namer")
    };
    let _daemon = Daemon::start(config).unwrap();
    let threads = [("THREADS", "4".to_string())];
    let mut namer = villain("namer", &path, MALLORY, (0, 0), &threads);
    let daemon = || upshift_elevate::sys::process_time(std::process::id() as i32).unwrap();
    namer.go_until(from_now(TIME * 2));
    std::thread::sleep(Duration::from_millis(200));
    let (began, before) = (Instant::now(), daemon());
    let found: Vec<Duration> = (0..3)
        .map(|_| {
            let began = Instant::now();
            let later = villain("spinners", &path, ALICE, (0, 0), &[]);
            until("what starts later is assigned", || {
                assigned(&census(&path), later.pid()).is_some()
            });
            began.elapsed()
        })
        .collect();
    let (took, used) = (began.elapsed(), Duration::from_nanos(daemon() - before));
    println!(
        "{} changes; programs are assigned after {found:?}; the daemon used {used:?} of {took:?}",
        namer.number("changes ")
    );
    assert!(
        found.iter().all(|it| *it < Duration::from_secs(4)),
        "{found:?}"
    );
}

/// Connects and closes until the deadline, in as many threads as `THREADS`: how often.
pub(crate) fn knocker() {
    println!("ready");
    let deadline = wait_for_go();
    let knocks = AtomicU64::new(0);
    let path = PathBuf::from(setting("SOCKET"));
    std::thread::scope(|scope| {
        for _ in 0..number("THREADS") {
            scope.spawn(|| {
                while monotonic() < deadline {
                    drop(connect(&path));
                    knocks.fetch_add(1, Relaxed);
                }
            });
        }
    });
    println!("knocks {}", knocks.load(Relaxed));
    wait_for_go();
}

/// How long another user takes to register, some times, while `attackers` go on.
pub(crate) fn registers_within(path: &Path, attackers: &mut [Process]) -> Vec<Duration> {
    for it in attackers {
        it.go_until(from_now(Duration::from_millis(3000)));
    }
    std::thread::sleep(Duration::from_millis(300));
    let once = |_| {
        let began = Instant::now();
        drop(villain("ghost", path, ALICE, (1, 10), &[]));
        began.elapsed()
    };
    (0..5).map(once).collect()
}

#[test]
fn who_connects_without_end_keeps_nobody_from_registering() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("knocker");
    let _daemon = Daemon::start(open_config("knocker")).unwrap();
    let threads = [("THREADS", "8".to_string())];
    let mut knockers =
        [MALLORY, TRUDY].map(|user| villain("knocker", &path, user, (0, 0), &threads));
    let took = registers_within(&path, &mut knockers);
    let knocks: Vec<u64> = knockers.iter_mut().map(|it| it.number("knocks ")).collect();
    println!("{knocks:?} connections in 3 s; another user registers in {took:?}");
    assert!(
        took.iter().all(|it| *it < Duration::from_secs(3)),
        "{took:?}"
    );
}

/// Holds `COUNT` connections to the figures without a word until it is told to end.
pub(crate) fn mute() {
    let place = setting("PLACE");
    let all: Vec<_> = (0..number("COUNT"))
        .map(|_| UnixStream::connect(&place))
        .collect();
    println!("ready {}", all.len());
    wait_for_go();
}

#[test]
fn who_connects_to_the_figures_and_says_nothing_keeps_nobody_from_them() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("mute");
    let place = directory().join("mute");
    let config = Config {
        metrics: Some(place.display().to_string()),
        ..open_config("mute")
    };
    let _daemon = Daemon::start(config).unwrap();
    until("it listens", || place.exists());
    std::fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let more = [
        ("COUNT", "100".to_string()),
        ("PLACE", place.display().to_string()),
    ];
    let _mute = villain("mute", &path, MALLORY, (0, 0), &more);
    use std::io::{Read, Write};
    let began = Instant::now();
    let mut stream = UnixStream::connect(&place).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let took = began.elapsed();
    println!("answered after {took:?}");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(took < PATIENCE, "{took:?}");
}

/// Registers, and adds and removes a thread over `CONNECTIONS` connections as fast as it is answered, until the deadline: how often.
pub(crate) fn updater() {
    pin(number("CPU") as usize);
    let path = PathBuf::from(setting("SOCKET"));
    println!("ready");
    let deadline = wait_for_go();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..number("CONNECTIONS") {
            scope.spawn(|| {
                let own = Thread {
                    tid: current_tid(),
                    vcpu: 0,
                    role: Role::Worker,
                };
                let connection = connect(&path);
                let (file, _page) = os::local_page().unwrap();
                register(&connection, &[number("CPU") as u32], &[], &file).unwrap();
                let (mut add, mut remove) = (wire::buffer(), wire::buffer());
                let lengths = [
                    wire::encode_update(&mut add, &[own], &[]).unwrap(),
                    wire::encode_update(&mut remove, &[], &[own.tid]).unwrap(),
                ];
                while monotonic() < deadline {
                    for message in [&add[..lengths[0]], &remove[..lengths[1]]] {
                        os::send(connection.as_fd(), message, &[]).unwrap();
                        let mut answer = wire::buffer();
                        let flags = RecvFlags::empty();
                        let (length, _) =
                            os::receive(connection.as_fd(), &mut answer, flags).unwrap();
                        let reply = Reply::decode(&answer[..length]).unwrap();
                        done.fetch_add(u64::from(matches!(reply, Reply::Done(_))), Relaxed);
                    }
                }
            });
        }
    });
    println!("done {}", done.load(Relaxed));
    wait_for_go();
}

#[test]
fn who_adds_and_removes_threads_without_end_keeps_nobody_from_registering() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("updater");
    let _daemon = Daemon::start(open_config("updater")).unwrap();
    let connections = [("CONNECTIONS", "8".to_string())];
    let mut updaters =
        [MALLORY, TRUDY].map(|user| villain("updater", &path, user, (0, 0), &connections));
    let took = registers_within(&path, &mut updaters);
    let done: Vec<u64> = updaters.iter_mut().map(|it| it.number("done ")).collect();
    println!("{done:?} changes in 3 s; another user registers in {took:?}");
    assert!(
        took.iter().all(|it| *it < Duration::from_secs(3)),
        "{took:?}"
    );
}

/// As many vCPUs as it gets with 128 threads each, all asleep, of which it changes the levels as fast as it can until the deadline.
pub(crate) fn switcher() {
    pin(number("CPU") as usize);
    let gate = std::sync::Mutex::new(());
    let closed = gate.lock().unwrap();
    std::thread::scope(|scope| {
        let tids = sleepers_behind(&gate, scope, 1024);
        let all: Vec<Foothold> = tids.chunks(128).map_while(Foothold::try_new).collect();
        println!("ready");
        let deadline = wait_for_go();
        let mut changes = 0u64;
        while monotonic() < deadline {
            for it in &all {
                it.run(if changes.is_multiple_of(2) { 3 } else { 62 });
            }
            changes += 1;
        }
        println!("changes {} of {}", changes, all.len());
        drop(closed);
    });
    wait_for_go();
}

#[test]
fn who_changes_levels_with_a_thousand_threads_leaves_a_victim_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("switcher");
    let _daemon = Daemon::start(open_config("switcher")).unwrap();
    let mut victim = villain("burner", &path, ALICE, (0, 0), &[]);
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut switcher = villain("switcher", &path, MALLORY, (0, 40), &[]);
    let end = from_now(TIME);
    let before = used_by_the_scheduler();
    victim.go_until(end);
    switcher.go_until(end);
    let (used, changes) = (victim.number("used "), switcher.line("changes "));
    let own = used_by_the_scheduler() - before;
    println!(
        "victim {used} of {} us, {changes:?} vCPUs, the scheduler {own:?}",
        us()
    );
    let seen = census(&path);
    // Before: what the scheduler worked counted as what others had, a canary was silent, and the victim was barred for it.
    assert!(seen["barred"].as_array().unwrap().is_empty(), "{seen}");
}

/// What user.* attributes of 60 KB the file takes, up to 64.
fn hang_on(file: &OwnedFd) -> usize {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let value = vec![b'x'; 60_000];
    let set = |index: &usize| {
        let name = format!("user.upshift{index}");
        rustix::fs::setxattr(&path, name, &value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    (0..64).filter(set).count()
}

/// Registers and asks for a census, and hangs attributes on what it gets: how many stay on each.
pub(crate) fn hanger() {
    pin(number("CPU") as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    let (file, _page) = os::local_page().unwrap();
    let mut files = register(&connection, &[number("CPU") as u32], &[], &file).unwrap();
    files.truncate(1);
    let mut message = wire::buffer();
    let length = wire::encode_census(&mut message);
    os::send(connection.as_fd(), &message[..length], &[]).unwrap();
    let mut answer = wire::buffer();
    let (_, census) = os::receive(connection.as_fd(), &mut answer, RecvFlags::empty()).unwrap();
    files.extend(census);
    println!("ready");
    println!("own {}", hang_on(&file));
    let of_the_daemon: Vec<usize> = files.iter().map(hang_on).collect();
    println!("hung {}", of_the_daemon.iter().sum::<usize>());
    wait_for_go();
}

#[test]
fn what_the_daemon_hands_out_takes_no_attributes() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("hanger");
    let _daemon = Daemon::start(open_config("hanger")).unwrap();
    let mut hanger = villain("hanger", &path, MALLORY, (0, 40), &[]);
    println!("{} on a file of its own", hanger.number("own "));
    // Before: 60 KB each of the kernel's memory, for as long as the daemon lives.
    assert_eq!(hanger.number("hung "), 0);
    assert_eq!(processes(&path), 1);
}
