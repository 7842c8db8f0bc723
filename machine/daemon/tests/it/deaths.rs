//! Deaths of any process at any time: no thread stays elevated, and the others continue.

use std::path::Path;
use std::time::{Duration, Instant};

use upshift_elevate::{Elevator, Priority};

use crate::attack::{MALLORY, TRUDY, from_now, start_child};
use crate::client::processes;
use crate::fuzz::drawn;
use crate::inquest::{elevated, has_ended, inquest};
use crate::process::{PATIENCE, PROMISE, Process, Random, elevated_threads, monotonic, until};
use crate::puppet::start_puppet;
use crate::{daemon, permitted, socket, turn};

fn survivor(socket: &Path, level: u8) -> Process {
    let settings = [("CPU", "0".to_string()), ("LEVEL", level.to_string())];
    let mut process = Process::start("survivor", socket, &settings);
    process.line("ready").unwrap();
    process
}

/// Two clients of different levels, which compete, and an ordinary program on each CPU, which takes
/// the remaining time.
struct Crowd {
    clients: [Process; 2],
    _load: Vec<Process>,
}

const LEVELS: [u8; 2] = [2, 40];

impl Crowd {
    fn new(socket: &Path) -> Crowd {
        let cpus = std::thread::available_parallelism().unwrap().get();
        let load = |cpu: usize| {
            let mut load = Process::start("bystander", socket, &[("CPU", cpu.to_string())]);
            load.line("ready").unwrap();
            load.go_until(monotonic() + 250_000_000_000);
            load
        };
        Crowd {
            clients: LEVELS.map(|level| survivor(socket, level)),
            _load: (0..cpus).map(load).collect(),
        }
    }

    fn any_is_elevated(&self) -> bool {
        let is_elevated = |client: &Process| !elevated_threads(client.pid()).is_empty();
        self.clients.iter().any(is_elevated)
    }

    /// Waits until no client is elevated, within the promise. Returns the time after the death of
    /// `victim`, which was killed. A pause of the whole machine counts only in part: no program
    /// could keep the promise then.
    ///
    /// After a client's death the daemon acts when its last thread has died. All of them but the
    /// elevated one are ordinary, and an ordinary thread dies when it gets a CPU, which depends on
    /// the other programs of the machine. A killed daemon has no such time: its guardian misses its
    /// heartbeat whether its threads can die or not.
    ///
    /// This thread is elevated while it waits, so that it checks in time, but no longer: when the
    /// kernel removes the files in `/proc` of a process that was waited for, it loops until another
    /// thread has finished the same removal, which cannot run below this one on its CPU.
    fn wait_until_none_is_elevated(
        &self,
        elevator: &Elevator,
        victim: Victim,
        daemon: &Process,
    ) -> Duration {
        let checking = elevator.elevate_current(Priority::of::<48>()).unwrap();
        let (mut took, mut dying) = (Duration::ZERO, Duration::ZERO);
        while self.any_is_elevated() {
            let dies = match victim {
                Victim::Daemon => false,
                Victim::Client(which) => !has_ended(self.clients[which].pid()),
            };
            let before = Instant::now();
            std::thread::sleep(Duration::from_micros(500));
            let slept = before.elapsed().min(Duration::from_millis(5));
            *if dies { &mut dying } else { &mut took } += slept;
            if took >= PROMISE || dying >= PATIENCE {
                let clients = self.clients.each_ref().map(Process::pid);
                let which = elevated(&clients);
                drop(checking);
                let [first, second] = clients;
                let all = [
                    ("client 0", first),
                    ("client 1", second),
                    ("daemon", daemon.pid()),
                ];
                panic!(
                    "a thread is still elevated after {took:?}, and {dying:?} in which the client died; killed: {victim:?}\n{which}{}",
                    inquest(&all)
                );
            }
        }
        took
    }
}

/// The killed process.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Daemon,
    Client(usize),
}

/// Kills daemons while a client is elevated, or at any moment of their start, and clients before
/// that, on a machine with a load on every CPU. The promise holds for every one of these deaths.
#[test]
fn hundreds_of_killed_daemons_leave_no_thread_elevated_and_clients_rejoin() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let rounds = drawn("UPSHIFT_DAEMON_DEATHS", 200);
    let path = socket("deaths");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let elevator = Elevator::with_guardian().unwrap();
    let (mut daemons, mut clients, mut starts) = (Vec::new(), Vec::new(), 0);
    let mut crowd = Crowd::new(&path);
    for round in 0..rounds {
        if round % 100 == 99 {
            // The children's lives are bounded.
            crowd = Crowd::new(&path);
        }
        let mut daemon = Process::start("daemon", &path, &[]);

        let moment = Duration::from_micros(random.below(20_000));
        if round % 5 == 0 {
            std::thread::sleep(moment);
            starts += 1;
        } else {
            daemon.line("ready").unwrap();
            std::thread::sleep(moment);

            until("a thread is elevated", || crowd.any_is_elevated());
        }

        if round % 5 == 3 {
            // A client that is alone is not elevated.
            let which = random.below(2) as usize;
            crowd.clients[which].signal(libc::SIGKILL);
            clients.push(crowd.wait_until_none_is_elevated(
                &elevator,
                Victim::Client(which),
                &daemon,
            ));
            crowd.clients[which].kill();
            crowd.clients[which] = survivor(&path, LEVELS[which]);
            until("both compete again", || crowd.any_is_elevated());
        }

        daemon.signal(libc::SIGKILL);
        daemons.push(crowd.wait_until_none_is_elevated(&elevator, Victim::Daemon, &daemon));
        for client in &mut crowd.clients {
            assert!(client.child.try_wait().unwrap().is_none(), "clients go on");
        }
    }
    daemons.sort_unstable();
    clients.sort_unstable();
    let (median, longest) = (daemons[daemons.len() / 2], daemons[daemons.len() - 1]);
    println!(
        "{rounds} daemons were killed, {starts} while they began, the others while a thread was elevated: no thread was elevated after {longest:?}, \
         in the median {median:?}; {} clients were, too: {:?}",
        clients.len(),
        clients.last()
    );
    let _daemon = daemon("deaths");
    until("both rejoin", || processes(&path) == 2);
}

#[test]
fn killed_clients_are_forgotten_at_any_step() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("clients");
    let _daemon = daemon("clients");
    let mut rival = start_puppet(&path);
    rival.obey("level 40");
    let mut random = Random(0x1234_5678_9abc);
    for _ in 0..40 {
        let settings = [("CPU", "0".to_string()), ("LEVEL", "2".to_string())];
        let mut client = Process::start("survivor", &path, &settings);
        if random.below(2) == 0 {
            client.line("joined").unwrap();
        }
        std::thread::sleep(Duration::from_micros(random.below(15_000)));
        client.kill();
        until("it is forgotten", || processes(&path) == 1);
    }
    assert_eq!(rival.obey("outranked 40"), "false");
    until("the rival is alone", || {
        elevated_threads(rival.pid()).is_empty()
    });
}

#[test]
fn a_guardian_that_is_killed_is_replaced_while_a_client_is_registered() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("guardian");
    let daemon = daemon("guardian");
    let mut sleeper = start_puppet(&path);
    let mut burner = start_puppet(&path);
    sleeper.obey("await 2");
    burner.obey("level 40");
    until("the sleeper is elevated", || {
        !elevated_threads(sleeper.pid()).is_empty()
    });
    let guardian = daemon.guardian_pid().unwrap();
    // SAFETY: a signal to a child of this process that has not been waited for.
    unsafe { libc::kill(guardian, libc::SIGKILL) };
    until("there is another one", || {
        daemon.guardian_pid().is_some_and(|pid| pid != guardian)
    });
    daemon.stop();
    assert!(elevated_threads(sleeper.pid()).is_empty());
}

#[test]
fn a_daemon_that_is_stopped_keeps_no_thread_elevated() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("stopped-daemon");
    let open = [("CONFIG", "mode = \"0666\"".to_string())];
    let mut daemon = Process::start("daemon", &path, &open);
    daemon.line("ready").unwrap();
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut burner = start_child("burner", &path, MALLORY, (0, 40), &[]);
    burner.go_until(from_now(PATIENCE));
    let elevated = |process: &Process| !elevated_threads(process.pid()).is_empty();
    until("it is elevated", || elevated(&burner));
    daemon.signal(libc::SIGSTOP);
    until("it is demoted", || !elevated(&burner));
    daemon.signal(libc::SIGCONT);
    let mut again = start_child("burner", &path, MALLORY, (0, 40), &[]);
    again.go_until(from_now(PATIENCE));
    until("the burning client is elevated again", || elevated(&again));
}
