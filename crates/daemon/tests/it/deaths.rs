//! Whoever dies, and whenever: nobody stays elevated, and the others go on.

use std::time::{Duration, Instant};

use crate::hostile::{processes, puppet};
use crate::process::{PROMISE, Process, Random, elevated_threads, monotonic, until};
use crate::{daemon, permitted, socket, turn};

fn survivor(socket: &std::path::Path, level: u8) -> Process {
    let settings = [("CPU", "0".to_string()), ("LEVEL", level.to_string())];
    let mut process = Process::start("survivor", socket, &settings);
    process.line("ready").unwrap();
    process
}

/// Daemon and clients, of which one or the other is killed in each round, beside an ordinary program that takes what it can get.
#[test]
fn hundreds_of_killed_daemons_leave_nobody_elevated_and_clients_rejoin() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let rounds: u64 = std::env::var("UPSHIFT_DAEMON_DEATHS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(500);
    let path = socket("deaths");
    let mut clients = [survivor(&path, 2), survivor(&path, 40)];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (began, mut took, mut elevated) = (Instant::now(), Vec::new(), 0);
    let mut load = Process::start("bystander", &path, &[("CPU", "0".to_string())]);
    load.line("ready").unwrap();
    load.go_until(monotonic() + 250_000_000_000);
    let mut killed_clients = 0;
    for round in 0..rounds {
        let mut daemon = Process::start("daemon", &path, &[]);
        if round % 4 == 0 {
            // At any moment of its start, else of its work.
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
        } else {
            daemon.line("ready").unwrap();
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
        }
        elevated += u64::from(
            clients
                .iter()
                .any(|it| !elevated_threads(it.pid()).is_empty()),
        );
        // Once in five times a client dies before, while it is what it may be.
        if round % 5 == 3 {
            let which = random.below(2) as usize;
            let level = if which == 0 { 2 } else { 40 };
            clients[which].kill();
            clients[which] = survivor(&path, level);
            killed_clients += 1;
        }
        daemon.kill();
        let dead = Instant::now();
        until("nobody is elevated", || {
            clients
                .iter()
                .all(|it| elevated_threads(it.pid()).is_empty())
        });
        took.push(dead.elapsed());
        let slow = began.elapsed() > Duration::from_secs(75) * (1 + rounds as u32 / 1000);
        assert!(!slow, "{round} of {rounds} rounds in {:?}", began.elapsed());
    }
    for client in &mut clients {
        assert!(client.child.try_wait().unwrap().is_none(), "clients go on");
    }
    took.sort_unstable();
    let (most, longest) = (took[took.len() * 98 / 100], took[took.len() - 1]);
    println!(
        "in {elevated} of {rounds} rounds somebody was elevated, {killed_clients} clients were killed, too; longest until nobody was {longest:?}, 98 % {most:?}"
    );
    // On every one, within the patience of `until`; within the promise but where the machine itself stood still.
    assert!(most < PROMISE, "{most:?} until nobody was elevated");
    assert!(
        elevated * 10 > rounds,
        "only in {elevated} rounds anybody was elevated"
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
    let mut rival = puppet(&path);
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
fn a_guardian_that_is_killed_is_replaced_while_somebody_is_registered() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("guardian");
    let daemon = daemon("guardian");
    let mut sleeper = puppet(&path);
    let mut burner = puppet(&path);
    sleeper.obey("await 2");
    burner.obey("level 40");
    until("the sleeper is elevated", || {
        !elevated_threads(sleeper.pid()).is_empty()
    });
    let guardian = daemon.guardian_pid().unwrap();
    // SAFETY: a signal to a child of this process that nobody has waited for.
    unsafe { libc::kill(guardian, libc::SIGKILL) };
    until("there is another one", || {
        daemon.guardian_pid().is_some_and(|pid| pid != guardian)
    });
    daemon.stop();
    assert!(elevated_threads(sleeper.pid()).is_empty());
}
