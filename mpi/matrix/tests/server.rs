//! Tests the server as a user runs it, that is, started by `mpirun` and with clients over TCP. The
//! products are compared with products that a single process computes.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use upshift_load::matrix::{HEADER, frame, square};
use upshift_mpi_cases::{Daemon, EVENT_TIMEOUT, Running, mpirun, serialise_jobs};
use upshift_mpi_matrix::wire::{Client, Reply, header};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift-mpi-matrix");

/// Starts the server with `ranks` ranks. Returns the job, and the address of the server.
fn start(ranks: usize, arguments: &[&str], socket: Option<&Path>) -> (Running, String) {
    let mut command = mpirun(ranks);
    if let Some(socket) = socket {
        command.env("UPSHIFT_DAEMON_SOCKET", socket);
    }
    let mut running = Running::start(command.arg(PROGRAM).args(arguments));
    let line = running.line("listening on ");
    let address = line.rsplit(' ').next().unwrap().to_owned();
    (running, address)
}

/// Returns the reply that contains the square of the matrix of order `n` with this seed.
fn expected(n: usize, seed: u64) -> Reply {
    let mut product = Vec::new();
    square(&frame(n, seed)[HEADER..], n, &mut product);
    Reply::Product(product.split_off(HEADER))
}

#[test]
fn products_are_correct_and_invalid_requests_are_refused() {
    for ranks in [1, 2, 3, 4] {
        let _guard = serialise_jobs();
        let (running, address) = start(ranks, &["--spread", "20"], None);
        let clients: Vec<_> = (0..8u8)
            .map(|level| {
                let address = address.clone();
                thread::spawn(move || {
                    let mut client = Client::connect(address).unwrap();
                    for n in [1, 2, 19, 20, 21, 64, 65, 100, 131] {
                        let seed = u64::from(level) * 1000 + n as u64;
                        let reply = client.square(level, n, seed).unwrap();
                        assert!(reply == expected(n, seed), "order {n} at level {level}");
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        let mut client = Client::connect(&address).unwrap();
        assert!(client.square(7, 300, 5).unwrap() == expected(300, 5));
        let reply = client.send(&header(8 * 3, 0)).unwrap();
        assert!(matches!(reply, Reply::Refused(text) if text.contains("square matrix")));
        let mut client = Client::connect(&address).unwrap();
        let reply = client.send(&header(8, 8)).unwrap();
        assert!(matches!(reply, Reply::Refused(text) if text.contains("0 to 7")));
        let (status, text) = running.end();
        assert!(status.success(), "{text}");
    }
}

/// After the death of a rank, clients are refused, and then get no connection. The job ends with a
/// message that names the rank.
#[test]
fn requests_to_a_killed_rank_are_refused_and_the_job_names_the_rank() {
    let _guard = serialise_jobs();
    let (mut running, address) = start(4, &[], None);
    let mut urgent = Client::connect(&address).unwrap();
    // Each rank computes one of these requests.
    for seed in 0..4 {
        assert!(urgent.square(0, 16, seed).unwrap() == expected(16, seed));
    }
    let batch = {
        let address = address.clone();
        thread::spawn(move || {
            let mut client = Client::connect(address).unwrap();
            let mut replies = Vec::new();
            while let Ok(reply) = client.square(5, 400, 1) {
                replies.push(reply);
            }
            replies
        })
    };
    let line = running.line("rank 3 is process ");
    let pid = line.rsplit(' ').next().unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(
        Command::new("kill")
            .args(["-KILL", pid])
            .status()
            .unwrap()
            .success()
    );
    let deadline = Instant::now() + EVENT_TIMEOUT;
    let mut refusals = 0;
    loop {
        assert!(
            Instant::now() < deadline,
            "the server neither refuses requests nor ends"
        );
        match urgent.square(0, 16, 9) {
            Ok(Reply::Unavailable(text)) => {
                assert!(text.contains("rank 3"), "{text}");
                refusals += 1;
            }
            Ok(_) => {}
            Err(_) => break,
        }
        thread::sleep(Duration::from_millis(5));
    }
    let replies = batch.join().unwrap();
    let product = expected(400, 1);
    for reply in replies {
        assert!(reply == product || matches!(reply, Reply::Unavailable(_)));
    }
    let (status, text) = running.end();
    assert!(refusals > 0, "{text}");
    assert!(!status.success(), "{text}");
    let message = text.lines().find(|line| line.contains("the job ends"));
    let message = message.unwrap_or_else(|| panic!("{text}"));
    assert!(
        message.contains("rank 3") && message.contains("last level-0 request: #"),
        "{message}"
    );
}

#[test]
fn all_ranks_join_the_board() {
    let _guard = serialise_jobs();
    let Some(daemon) = Daemon::start("all_ranks_join_the_board") else {
        return;
    };
    let (running, address) = start(4, &["--board"], Some(&daemon.socket()));
    let mut client = Client::connect(&address).unwrap();
    for level in 0..8 {
        assert!(client.square(level, 200, 3).unwrap() == expected(200, 3));
    }
    let status: serde_json::Value = serde_json::from_str(&daemon.status()).unwrap();
    assert_eq!(status["processes"].as_array().unwrap().len(), 4, "{status}");
    let (status, text) = running.end();
    assert!(status.success(), "{text}");
}
