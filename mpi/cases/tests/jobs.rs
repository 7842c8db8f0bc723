//! Every case as a job of `mpirun`, at 1, 2 and 4 ranks. A job that does not end in time is killed, which is a failure.

use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift-mpi-cases");
const RANKS: [usize; 3] = [1, 2, 4];
const SECONDS: &str = "60";

/// One job at a time: each has more ranks than the machine may have CPUs.
static ONE: Mutex<()> = Mutex::new(());

/// `mpirun` and what it needs here, up to the program.
fn mpirun(ranks: usize) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", SECONDS, "mpirun", "--oversubscribe"])
        .args(["-n", &ranks.to_string()])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null());
    command
}

fn job(ranks: usize, arguments: &[&str]) -> Output {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = mpirun(ranks);
    command.arg(PROGRAM).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let both = [&*output.stdout, &*output.stderr].map(String::from_utf8_lossy);
    both.concat()
}

fn passes(name: &str) {
    passes_with(name, "1");
}

fn passes_with(name: &str, seed: &str) {
    for ranks in RANKS {
        let output = job(ranks, &[name, seed]);
        let text = text(&output);
        assert!(
            output.status.success() && text.contains("ok"),
            "{name} on {ranks} ranks: {}\n{text}",
            output.status
        );
    }
}

/// The job ends, in time, and says which rank it was and what it did last.
fn names_the_last_rank(name: &str, what: &str) {
    for ranks in [2, 4] {
        let output = job(ranks, &[name]);
        let text = text(&output);
        assert!(!output.status.success(), "{name}\n{text}");
        // What `timeout` says of a job that it had to end.
        assert_ne!(output.status.code(), Some(124), "{name} hangs\n{text}");
        let told: Vec<_> = text
            .lines()
            .filter(|line| line.contains("the job ends"))
            .collect();
        assert_eq!(told.len(), 1, "{name}\n{text}");
        assert!(
            told[0].contains(&format!("rank {} ", ranks - 1)) && told[0].contains(what),
            "{name}\n{text}"
        );
        assert!(
            told[0].contains("its last level-0 request: #1 of rank 0, 77 bytes"),
            "{name}\n{text}"
        );
    }
}

#[test]
fn messages_arrive() {
    passes("points");
}

#[test]
fn messages_arrive_with_two_vcpus() {
    passes("points2");
}

#[test]
fn collectives_give_what_they_should() {
    passes("collectives");
}

#[test]
fn collectives_give_what_they_should_with_two_vcpus() {
    passes("collectives2");
}

#[test]
fn requests_run_at_their_level() {
    passes("requests");
}

#[test]
fn an_urgent_request_overtakes_batch_requests() {
    passes("overtakes");
}

#[test]
fn an_urgent_request_overtakes_with_preemption() {
    passes("preemptible");
}

#[test]
fn what_is_dropped_or_mismatched_harms_nobody() {
    passes("hostile");
}

#[test]
fn a_huge_message_arrives() {
    passes("huge");
}

#[test]
fn storms_of_cancelled_operations_pass() {
    for seed in ["1", "2", "3"] {
        passes_with("storm", seed);
    }
    passes_with("storm2", "4");
}

#[test]
fn more_ranks_than_cpus_get_on() {
    passes("busy");
}

#[test]
fn an_idle_rank_takes_little() {
    passes("idle");
}

#[test]
fn a_killed_rank_is_named() {
    names_the_last_rank("killed", "has died");
}

#[test]
fn a_rank_that_hangs_is_named() {
    names_the_last_rank("hung", "has not polled");
}

#[test]
fn a_rank_that_fails_is_named() {
    names_the_last_rank("error", "has died");
    names_the_last_rank("panic", "has died");
}
