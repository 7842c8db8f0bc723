//! Tests with failing system calls. The daemon must continue and report the failure, and no thread
//! may stay elevated.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use upshift_board::LocalPage;
use upshift_board::os::Mapping;
use upshift_daemon::Daemon;
use upshift_daemon::machine::{Machine, Real};
use upshift_elevate::testing::{Call, Faulty};

use crate::attack::{ALICE, TRUDY, open_config, start_child};
use crate::client::{census, processes};
use crate::process::{Process, Random, elevated_threads, monotonic, wait_until};
use crate::scripted_client::start_scripted_client;
use crate::{config, permitted, serial_test, socket};

const ERRORS: [i32; 4] = [libc::EPERM, libc::ESRCH, libc::EINTR, libc::ENOMEM];

fn run_contest(path: &std::path::Path, clients: &mut [Process]) {
    for step in 0..6u64 {
        for (index, client) in clients.iter_mut().enumerate() {
            client.execute(format!("level {}", (step * 7 + index as u64 * 13) % 60));
            client.send(format!("burn {}", monotonic() + 8_000_000));
        }
        for client in clients.iter_mut() {
            client.line("burn=").unwrap();
        }
    }
    let _ = processes(path);
}

#[test]
fn failing_scheduling_calls_leave_no_thread_elevated() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("faults");
    let faulty = Arc::new(Faulty::new());
    let daemon = Daemon::builder(config("faults"))
        .sys(faulty.clone())
        .start()
        .unwrap();
    let mut clients = [start_scripted_client(&path), start_scripted_client(&path)];
    let mut random = Random(0xabcd_ef01);
    let calls = [
        Call::SetScheduler,
        Call::SetAttr,
        Call::GetAttr,
        Call::GetAffinity,
        Call::Birth,
        Call::Any,
    ];
    for errno in ERRORS {
        for call in calls {
            faulty.fail(call, random.below(4), 1 + random.below(30), errno);
            faulty.fail(call, 40 + random.below(20), 1, errno);
        }
        run_contest(&path, &mut clients);
        faulty.clear_faults();
    }
    // After the faults the daemon schedules all threads again, including threads that it did not
    // move for a second after a refusal.
    clients[0].execute("level 2");
    clients[1].execute("level 40");
    wait_until("only the more urgent client is elevated", || {
        clients[1].execute("ring 1");
        !elevated_threads(clients[0].pid()).is_empty()
            && elevated_threads(clients[1].pid()).is_empty()
    });
    daemon.stop();
    wait_until("no thread is elevated", || {
        clients
            .iter()
            .all(|process| elevated_threads(process.pid()).is_empty())
    });
}

/// System calls report that a thread has ended, while its clock shows that it is alive. The thread
/// must be elevated again, and restored in the end.
#[test]
fn a_living_thread_that_calls_report_as_ended_is_elevated_again_and_restored() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("said");
    let faulty = Arc::new(Faulty::new());
    let daemon = Daemon::builder(config("said"))
        .sys(faulty.clone())
        .start()
        .unwrap();
    let mut clients = [start_scripted_client(&path), start_scripted_client(&path)];
    let contest = |clients: &mut [Process; 2], winner: usize, message: &str| {
        clients[winner].execute("level 2");
        clients[1 - winner].execute("level 40");
        wait_until(message, || {
            clients[winner].execute("ring 1");
            !elevated_threads(clients[winner].pid()).is_empty()
                && elevated_threads(clients[1 - winner].pid()).is_empty()
        });
    };
    let calls = [
        Call::SetScheduler,
        Call::SetAttr,
        Call::GetAttr,
        Call::Birth,
        Call::Any,
    ];
    for (round, call) in calls.into_iter().enumerate() {
        let message = format!("{call:?}: only the more urgent client is elevated");
        contest(&mut clients, round % 2, &message);
        faulty.fail(call, 0, u64::MAX, libc::ESRCH);
        for level in [50, 2, 50] {
            clients[round % 2].execute(format!("level {level}"));
            clients[round % 2].execute("ring 5");
        }
        faulty.clear_faults();
        // Includes threads that the daemon did not move for a second after a refusal.
        contest(&mut clients, round % 2, &message);
        contest(&mut clients, 1 - round % 2, &message);
    }
    daemon.stop();
    for client in &clients {
        assert!(elevated_threads(client.pid()).is_empty());
    }
}

/// The real system calls. Before each call, a hook gets the name of the call and its process, or 0;
/// if the hook returns an error, the call fails with it.
struct Hooked<F>(F);

impl<F> std::fmt::Debug for Hooked<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooked")
    }
}

/// Returns system calls that panic when CPU time is read, which happens in a scheduler that has
/// elevated a thread.
pub(crate) fn panicking_calls() -> Arc<dyn Machine> {
    Arc::new(Hooked(|call: &str, _| {
        assert_ne!(call, "cpu_time", "a test: a scheduler panics");
        Ok(())
    }))
}

impl<F: Fn(&str, i32) -> io::Result<()> + Send + Sync> Machine for Hooked<F> {
    fn thread_clock(&self, pid: i32, tid: i32) -> io::Result<OwnedFd> {
        (self.0)("thread_clock", pid)?;
        Real.thread_clock(pid, tid)
    }

    fn cpu_time(&self, clock: BorrowedFd<'_>) -> io::Result<u64> {
        (self.0)("cpu_time", 0)?;
        Real.cpu_time(clock)
    }

    fn process_time(&self, pid: i32) -> io::Result<u64> {
        (self.0)("process_time", pid)?;
        Real.process_time(pid)
    }

    fn process(&self, pid: i32) -> io::Result<OwnedFd> {
        (self.0)("process", pid)?;
        Real.process(pid)
    }

    fn users(&self, process: BorrowedFd<'_>) -> io::Result<[u32; 4]> {
        (self.0)("users", 0)?;
        Real.users(process)
    }

    fn user(&self, process: BorrowedFd<'_>) -> io::Result<u32> {
        (self.0)("user", 0)?;
        Real.user(process)
    }

    fn pidfd(&self, pid: i32) -> io::Result<OwnedFd> {
        (self.0)("pidfd", pid)?;
        Real.pidfd(pid)
    }

    fn doorbell(&self) -> io::Result<OwnedFd> {
        (self.0)("doorbell", 0)?;
        Real.doorbell()
    }

    fn local_page(&self, file: BorrowedFd<'_>) -> io::Result<Mapping<LocalPage>> {
        (self.0)("local_page", 0)?;
        Real.local_page(file)
    }

    fn watch(&self, epoll: BorrowedFd<'_>, doorbell: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        (self.0)("watch", 0)?;
        Real.watch(epoll, doorbell, key)
    }
}

#[test]
fn a_scheduler_that_panics_ends_the_daemon_and_leaves_no_thread_elevated() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("panics");
    let mut daemon = Process::start("panicking-daemon", &path, &[]);
    daemon.line("ready").unwrap();
    let (mut sleeper, mut burner) = (start_scripted_client(&path), start_scripted_client(&path));
    sleeper.execute("await 2");
    burner.execute("level 40");
    burner.send(format!("burn {}", monotonic() + 1_000_000_000));
    wait_until("the daemon has ended", || {
        daemon.child.try_wait().unwrap().is_some()
    });
    let status = daemon.child.try_wait().unwrap().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    wait_until("no thread is elevated", || {
        let pids = [sleeper.pid(), burner.pid()];
        pids.iter().all(|&pid| elevated_threads(pid).is_empty())
    });
    burner.line("burn=").unwrap();
}

/// Returns system calls of which a quarter fail at random, with each of [`ERRORS`] in turn.
fn flaky_calls() -> Arc<dyn Machine> {
    let state = Mutex::new((7u64, 0));
    Arc::new(Hooked(move |_: &str, _| {
        let (random, next) = &mut *state.lock().unwrap();
        *random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        if !(*random >> 33).is_multiple_of(4) {
            return Ok(());
        }
        *next = (*next + 1) % ERRORS.len();
        Err(io::Error::from_raw_os_error(ERRORS[*next]))
    }))
}

#[test]
fn clients_register_in_the_end_although_calls_of_the_daemon_fail() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("flaky");
    let daemon = Daemon::builder(config("flaky"))
        .machine(flaky_calls())
        .start()
        .unwrap();
    let settings = [("CPU", "0".to_string()), ("LEVEL", "2".to_string())];
    let mut clients = [
        Process::start("rejoining-client", &path, &settings),
        Process::start("rejoining-client", &path, &settings),
    ];
    for client in &mut clients {
        client.line("joined").unwrap();
    }
    assert_eq!(processes(&path), 2);
    daemon.stop();
    wait_until("no thread is elevated", || {
        clients
            .iter()
            .all(|process| elevated_threads(process.pid()).is_empty())
    });
}

/// The owner of a process can block a reader of its files for any time. The daemon must refuse such
/// a client, and delay no other client.
#[test]
fn a_client_whose_lookup_blocks_is_refused_and_delays_no_client() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("stuck");
    let released = Arc::new(AtomicBool::new(false));
    let is_released = Arc::clone(&released);
    let machine = Arc::new(Hooked(move |call: &str, pid: i32| {
        let user_of =
            |pid| std::fs::metadata(format!("/proc/{pid}")).map_or(0, |metadata| metadata.uid());
        while call == "process" && user_of(pid) == ALICE && !is_released.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }));
    let daemon = Daemon::builder(open_config("stuck")).machine(machine);
    let _daemon = daemon.start().unwrap();
    let settings = |user: u32| {
        [
            ("USER", user.to_string()),
            ("CPU", "0".to_string()),
            ("LEVEL", "2".to_string()),
        ]
    };
    let mut blocked_clients: Vec<Process> = (0..4)
        .map(|_| Process::start("rejoining-client", &path, &settings(ALICE)))
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let _other_clients: Vec<Process> = (0..8)
        .map(|_| start_child("idle-claimant", &path, TRUDY, (0, 63), &[]))
        .collect();
    assert_eq!(processes(&path), 8);
    wait_until("the blocked clients are refused", || {
        census(&path)["refused"].as_u64() >= Some(4)
    });
    released.store(true, Relaxed);
    for process in &mut blocked_clients {
        process.line("joined").unwrap();
    }
    assert_eq!(processes(&path), 12);
}
