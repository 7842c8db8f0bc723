//! Tests with processes that are killed or stopped at any time. No thread may stay elevated, and
//! all other processes must continue.

use std::path::Path;
use std::time::{Duration, Instant};

use upshift_elevate::{Elevator, Priority};

use crate::attack::{MALLORY, TRUDY, deadline_after, start_child};
use crate::client::processes;
use crate::diagnosis::{describe_elevated_threads, describe_processes, has_ended};
use crate::fuzz::parameter;
use crate::process::{
    Process, RESTORE_LIMIT, Random, WAIT_LIMIT, elevated_threads, monotonic, wait_until,
};
use crate::scripted_client::start_scripted_client;
use crate::{daemon, permitted, serial_test, socket};

/// Starts a client on CPU 0 at `level` that registers again after the end of its daemon.
fn start_rejoining_client(socket: &Path, level: u8) -> Process {
    let settings = [("CPU", "0".to_string()), ("LEVEL", level.to_string())];
    let mut process = Process::start("rejoining-client", socket, &settings);
    process.line("ready").unwrap();
    process
}

/// Two clients of different levels that compete for a CPU, and an ordinary program on each CPU that
/// uses all remaining time.
struct LoadedClients {
    clients: [Process; 2],
    _spinners: Vec<Process>,
}

const LEVELS: [u8; 2] = [2, 40];

impl LoadedClients {
    fn new(socket: &Path) -> LoadedClients {
        let cpus = std::thread::available_parallelism().unwrap().get();
        let start_spinner = |cpu: usize| {
            let mut spinner = Process::start("bystander", socket, &[("CPU", cpu.to_string())]);
            spinner.line("ready").unwrap();
            spinner.run_until(monotonic() + 250_000_000_000);
            spinner
        };
        LoadedClients {
            clients: LEVELS.map(|level| start_rejoining_client(socket, level)),
            _spinners: (0..cpus).map(start_spinner).collect(),
        }
    }

    fn any_is_elevated(&self) -> bool {
        let is_elevated = |client: &Process| !elevated_threads(client.pid()).is_empty();
        self.clients.iter().any(is_elevated)
    }

    /// Waits until no client is elevated, for at most [`RESTORE_LIMIT`]. Returns the time since the
    /// death of `victim`, which was killed. Only a part of a standstill of the whole machine
    /// counts, since no program can act during it.
    ///
    /// The daemon restores the threads of a client when the client's last thread has ended. All
    /// threads but the elevated one are ordinary, and an ordinary thread ends when it gets a CPU,
    /// which depends on the other programs of the machine. That time does not count. A killed
    /// daemon has no such time, because the guardian misses the heartbeat even while the daemon's
    /// threads still exist.
    ///
    /// The calling thread is elevated while it waits, so that it checks in time. It is not elevated
    /// when it collects a process that has ended. In that call, the kernel removes the files of the
    /// process in `/proc`, and loops until another thread has finished the same removal. This other
    /// thread may not run while an elevated thread occupies its CPU.
    fn wait_until_none_is_elevated(
        &self,
        elevator: &Elevator,
        victim: Victim,
        daemon: &Process,
    ) -> Duration {
        let checking = elevator.elevate_current(Priority::of::<48>()).unwrap();
        let (mut elapsed, mut time_dying) = (Duration::ZERO, Duration::ZERO);
        while self.any_is_elevated() {
            let is_dying = match victim {
                Victim::Daemon => false,
                Victim::Client(index) => !has_ended(self.clients[index].pid()),
            };
            let before = Instant::now();
            std::thread::sleep(Duration::from_micros(500));
            let slept = before.elapsed().min(Duration::from_millis(5));
            *if is_dying {
                &mut time_dying
            } else {
                &mut elapsed
            } += slept;
            if elapsed >= RESTORE_LIMIT || time_dying >= WAIT_LIMIT {
                let clients = self.clients.each_ref().map(Process::pid);
                let elevated = describe_elevated_threads(&clients);
                drop(checking);
                let [first, second] = clients;
                let processes = [
                    ("client 0", first),
                    ("client 1", second),
                    ("daemon", daemon.pid()),
                ];
                panic!(
                    "a thread is still elevated after {elapsed:?}, and {time_dying:?} in which the client died; killed: {victim:?}\n{elevated}{}",
                    describe_processes(&processes)
                );
            }
        }
        elapsed
    }
}

#[derive(Debug, Clone, Copy)]
enum Victim {
    Daemon,
    Client(usize),
}

/// Kills daemons while a client is elevated, or at any moment of their start, and sometimes a
/// client first, on a machine with a load on every CPU. After each of these deaths, all threads
/// must be restored within [`RESTORE_LIMIT`].
#[test]
fn killed_daemons_leave_no_thread_elevated_and_clients_rejoin() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let rounds = parameter("UPSHIFT_DAEMON_DEATHS", 200);
    let path = socket("deaths");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let elevator = Elevator::with_guardian().unwrap();
    // Times from a death until all threads were restored.
    let (mut daemon_times, mut client_times) = (Vec::new(), Vec::new());
    let mut killed_starts = 0;
    let mut clients_under_load = LoadedClients::new(&path);
    for round in 0..rounds {
        if round % 100 == 99 {
            // The lifetime of child processes is limited.
            clients_under_load = LoadedClients::new(&path);
        }
        let mut daemon = Process::start("daemon", &path, &[]);

        let moment = Duration::from_micros(random.below(20_000));
        if round % 5 == 0 {
            std::thread::sleep(moment);
            killed_starts += 1;
        } else {
            daemon.line("ready").unwrap();
            std::thread::sleep(moment);

            wait_until("a thread is elevated", || {
                clients_under_load.any_is_elevated()
            });
        }

        if round % 5 == 3 {
            // Without its rival, the other client is not elevated.
            let index = random.below(2) as usize;
            clients_under_load.clients[index].signal(libc::SIGKILL);
            client_times.push(clients_under_load.wait_until_none_is_elevated(
                &elevator,
                Victim::Client(index),
                &daemon,
            ));
            clients_under_load.clients[index].kill();
            clients_under_load.clients[index] = start_rejoining_client(&path, LEVELS[index]);
            wait_until("both clients compete again", || {
                clients_under_load.any_is_elevated()
            });
        }

        daemon.signal(libc::SIGKILL);
        daemon_times.push(clients_under_load.wait_until_none_is_elevated(
            &elevator,
            Victim::Daemon,
            &daemon,
        ));
        for client in &mut clients_under_load.clients {
            assert!(
                client.child.try_wait().unwrap().is_none(),
                "a client has ended with the daemon"
            );
        }
    }
    daemon_times.sort_unstable();
    client_times.sort_unstable();
    let median = daemon_times[daemon_times.len() / 2];
    let longest = daemon_times[daemon_times.len() - 1];
    println!(
        "{rounds} daemons were killed, {killed_starts} during their start, the others while a thread was elevated: all threads were restored after at most {longest:?}, \
         in the median {median:?}; {} clients were killed: at most {:?}",
        client_times.len(),
        client_times.last()
    );
    let _daemon = daemon("deaths");
    wait_until("both clients rejoin", || processes(&path) == 2);
}

#[test]
fn a_client_that_is_killed_at_any_step_is_removed() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("clients");
    let _daemon = daemon("clients");
    let mut rival = start_scripted_client(&path);
    rival.execute("level 40");
    let mut random = Random(0x1234_5678_9abc);
    for _ in 0..40 {
        let settings = [("CPU", "0".to_string()), ("LEVEL", "2".to_string())];
        let mut client = Process::start("rejoining-client", &path, &settings);
        if random.below(2) == 0 {
            client.line("joined").unwrap();
        }
        std::thread::sleep(Duration::from_micros(random.below(15_000)));
        client.kill();
        wait_until("the killed client is removed", || processes(&path) == 1);
    }
    assert_eq!(rival.execute("outranked 40"), "false");
    wait_until("the rival is alone", || {
        elevated_threads(rival.pid()).is_empty()
    });
}

#[test]
fn a_guardian_that_is_killed_is_replaced_while_a_client_is_registered() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("guardian");
    let daemon = daemon("guardian");
    let mut sleeper = start_scripted_client(&path);
    let mut burner = start_scripted_client(&path);
    sleeper.execute("await 2");
    burner.execute("level 40");
    wait_until("the sleeper is elevated", || {
        !elevated_threads(sleeper.pid()).is_empty()
    });
    let guardian = daemon.guardian_pid().unwrap();
    // SAFETY: the guardian is a child that has not been waited for, so its pid is not reused.
    unsafe { libc::kill(guardian, libc::SIGKILL) };
    wait_until("the guardian is replaced", || {
        daemon.guardian_pid().is_some_and(|pid| pid != guardian)
    });
    daemon.stop();
    assert!(elevated_threads(sleeper.pid()).is_empty());
}

#[test]
fn a_stopped_daemon_leaves_no_thread_elevated() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("stopped-daemon");
    let config = [("CONFIG", "mode = \"0666\"".to_string())];
    let mut daemon = Process::start("daemon", &path, &config);
    daemon.line("ready").unwrap();
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut burner = start_child("burner", &path, MALLORY, (0, 40), &[]);
    burner.run_until(deadline_after(WAIT_LIMIT));
    let elevated = |process: &Process| !elevated_threads(process.pid()).is_empty();
    wait_until("the client is elevated", || elevated(&burner));
    daemon.signal(libc::SIGSTOP);
    wait_until("the client is demoted", || !elevated(&burner));
    daemon.signal(libc::SIGCONT);
    let mut second = start_child("burner", &path, MALLORY, (0, 40), &[]);
    second.run_until(deadline_after(WAIT_LIMIT));
    wait_until("a second client is elevated", || elevated(&second));
}
