//! System calls that fail: the daemon goes on, says so, and nobody stays elevated.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::Mutex;

use upshift_board::LocalPage;
use upshift_board::os::Mapping;
use upshift_daemon::Daemon;
use upshift_daemon::machine::{Machine, Real};
use upshift_elevate::testing::{Call, Faulty};

use crate::hostile::{processes, puppet};
use crate::process::{Process, Random, elevated_threads, monotonic, until};
use crate::{config, permitted, socket, turn};

const ERRORS: [i32; 4] = [libc::EPERM, libc::ESRCH, libc::EINTR, libc::ENOMEM];

/// Two puppets that change their levels and burn for a while; registering may fail, because the daemon's calls do.
fn quarrel(path: &std::path::Path, clients: &mut [Process]) {
    for step in 0..6u64 {
        for (index, client) in clients.iter_mut().enumerate() {
            client.obey(format!("level {}", (step * 7 + index as u64 * 13) % 60));
            client.say(format!("burn {}", monotonic() + 8_000_000));
        }
        for client in clients.iter_mut() {
            client.line("burn=").unwrap();
        }
    }
    let _ = processes(path);
}

#[test]
fn failing_scheduling_calls_leave_nobody_elevated() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("faults");
    let faulty = Arc::new(Faulty::new());
    let daemon = Daemon::builder(config("faults"))
        .sys(faulty.clone())
        .start()
        .unwrap();
    let mut clients = [puppet(&path), puppet(&path)];
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
        quarrel(&path, &mut clients);
        faulty.heal();
    }
    // Healed, it schedules again: threads that were left alone for a second, too.
    clients[0].obey("level 2");
    clients[1].obey("level 40");
    until("the more urgent is elevated", || {
        clients[1].obey("ring 1");
        !elevated_threads(clients[0].pid()).is_empty()
            && elevated_threads(clients[1].pid()).is_empty()
    });
    daemon.stop();
    until("nobody is elevated", || {
        clients
            .iter()
            .all(|it| elevated_threads(it.pid()).is_empty())
    });
}

/// The real calls, but whoever looks at CPU time panics: a scheduler, while it has somebody elevated.
#[derive(Debug)]
struct Panics;

pub(crate) fn panics() -> Arc<dyn Machine> {
    Arc::new(Panics)
}

impl Machine for Panics {
    fn thread_clock(&self, pid: i32, tid: i32) -> io::Result<OwnedFd> {
        Real.thread_clock(pid, tid)
    }

    fn cpu_time(&self, _clock: BorrowedFd<'_>) -> io::Result<u64> {
        panic!("a test: a scheduler panics");
    }

    fn process_time(&self, pid: i32) -> io::Result<u64> {
        Real.process_time(pid)
    }

    fn lends_its_priority(&self, tid: i32) -> io::Result<bool> {
        Real.lends_its_priority(tid)
    }

    fn process(&self, pid: i32) -> io::Result<OwnedFd> {
        Real.process(pid)
    }

    fn users(&self, process: BorrowedFd<'_>) -> io::Result<[u32; 4]> {
        Real.users(process)
    }

    fn user(&self, process: BorrowedFd<'_>) -> io::Result<u32> {
        Real.user(process)
    }

    fn pidfd(&self, pid: i32) -> io::Result<OwnedFd> {
        Real.pidfd(pid)
    }

    fn doorbell(&self) -> io::Result<OwnedFd> {
        Real.doorbell()
    }

    fn local_page(&self, file: BorrowedFd<'_>) -> io::Result<Mapping<LocalPage>> {
        Real.local_page(file)
    }

    fn watch(&self, epoll: BorrowedFd<'_>, bell: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        Real.watch(epoll, bell, key)
    }
}

#[test]
fn a_scheduler_that_panics_ends_the_daemon_and_leaves_nobody_elevated() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("panics");
    let mut daemon = Process::start("daemon that panics", &path, &[]);
    daemon.line("ready").unwrap();
    let (mut sleeper, mut burner) = (puppet(&path), puppet(&path));
    sleeper.obey("await 2");
    burner.obey("level 40");
    burner.say(format!("burn {}", monotonic() + 1_000_000_000));
    until("the daemon has ended", || {
        daemon.child.try_wait().unwrap().is_some()
    });
    let status = daemon.child.try_wait().unwrap().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    until("nobody is elevated", || {
        let all = [sleeper.pid(), burner.pid()];
        all.iter().all(|&pid| elevated_threads(pid).is_empty())
    });
    burner.line("burn=").unwrap();
}

/// The real calls, of which every so many fail with one errno after another.
#[derive(Debug)]
struct Flaky {
    random: Mutex<Dice>,
}

#[derive(Debug)]
struct Dice(u64, usize);

impl Flaky {
    fn step(&self) -> io::Result<()> {
        let mut random = self.random.lock().unwrap();
        random.0 = random
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        if !(random.0 >> 33).is_multiple_of(4) {
            return Ok(());
        }
        random.1 = (random.1 + 1) % ERRORS.len();
        Err(io::Error::from_raw_os_error(ERRORS[random.1]))
    }
}

impl Machine for Flaky {
    fn thread_clock(&self, pid: i32, tid: i32) -> io::Result<OwnedFd> {
        self.step()?;
        Real.thread_clock(pid, tid)
    }

    fn cpu_time(&self, clock: BorrowedFd<'_>) -> io::Result<u64> {
        self.step()?;
        Real.cpu_time(clock)
    }

    fn process_time(&self, pid: i32) -> io::Result<u64> {
        self.step()?;
        Real.process_time(pid)
    }

    fn lends_its_priority(&self, tid: i32) -> io::Result<bool> {
        self.step()?;
        Real.lends_its_priority(tid)
    }

    fn process(&self, pid: i32) -> io::Result<OwnedFd> {
        self.step()?;
        Real.process(pid)
    }

    fn users(&self, process: BorrowedFd<'_>) -> io::Result<[u32; 4]> {
        self.step()?;
        Real.users(process)
    }

    fn user(&self, process: BorrowedFd<'_>) -> io::Result<u32> {
        self.step()?;
        Real.user(process)
    }

    fn pidfd(&self, pid: i32) -> io::Result<OwnedFd> {
        self.step()?;
        Real.pidfd(pid)
    }

    fn doorbell(&self) -> io::Result<OwnedFd> {
        self.step()?;
        Real.doorbell()
    }

    fn local_page(&self, file: BorrowedFd<'_>) -> io::Result<Mapping<LocalPage>> {
        self.step()?;
        Real.local_page(file)
    }

    fn watch(&self, epoll: BorrowedFd<'_>, bell: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.step()?;
        Real.watch(epoll, bell, key)
    }
}

#[test]
fn failing_registrations_leave_nothing_behind_and_succeed_in_the_end() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("flaky");
    let machine = Arc::new(Flaky {
        random: Mutex::new(Dice(7, 0)),
    });
    let daemon = Daemon::builder(config("flaky"))
        .machine(machine)
        .start()
        .unwrap();
    let settings = [("CPU", "0".to_string()), ("LEVEL", "2".to_string())];
    let mut clients = [
        Process::start("survivor", &path, &settings),
        Process::start("survivor", &path, &settings),
    ];
    for client in &mut clients {
        client.line("joined").unwrap();
    }
    assert_eq!(processes(&path), 2);
    daemon.stop();
    until("nobody is elevated", || {
        clients
            .iter()
            .all(|it| elevated_threads(it.pid()).is_empty())
    });
}
