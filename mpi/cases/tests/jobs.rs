//! Every case as a job of `mpirun`, at 1, 2 and 4 ranks. A job that does not end in time is killed,
//! which is a failure.

use std::process::{Command, Output};

use upshift_mpi_cases::{Daemon, Running, mpirun, mpirun_for, serialise_jobs, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift-mpi-cases");
const RANKS: [usize; 3] = [1, 2, 4];

fn job(ranks: usize, arguments: &[&str]) -> Output {
    let _guard = serialise_jobs();
    let mut command = mpirun(ranks);
    command.arg(PROGRAM).args(arguments).output().unwrap()
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

/// Checks that the job ends in time and names the last rank with its last request.
fn names_the_last_rank(name: &str, what: &str) {
    for ranks in [2, 4] {
        let output = job(ranks, &[name]);
        let text = text(&output);
        assert!(!output.status.success(), "{name}\n{text}");
        // The status of `timeout` for a job that it had to end.
        assert_ne!(output.status.code(), Some(124), "{name} hangs\n{text}");
        let reports: Vec<_> = text
            .lines()
            .filter(|line| line.contains("the job ends"))
            .collect();
        assert_eq!(reports.len(), 1, "{name}\n{text}");
        assert!(
            reports[0].contains(&format!("rank {} ", ranks - 1)) && reports[0].contains(what),
            "{name}\n{text}"
        );
        assert!(
            reports[0].contains("its last level-0 request: #1 of rank 0, 77 bytes"),
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
fn collectives_give_the_expected_results() {
    passes("collectives");
}

#[test]
fn collectives_give_the_expected_results_with_two_vcpus() {
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
fn dropped_and_mismatched_operations_harm_no_other() {
    passes("hostile");
}

#[test]
fn a_huge_message_arrives() {
    let output = job(2, &["huge"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Some of these jobs have more ranks than CPUs.
#[test]
fn operations_of_all_sizes_give_the_expected_results() {
    for ranks in [2, 3, 4] {
        let output = job(ranks, &["sizes"]);
        assert!(output.status.success(), "{ranks}\n{}", text(&output));
    }
    let _guard = serialise_jobs();
    let output = mpirun_for(120, 2)
        .args([PROGRAM, "sizes256"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_long_collective_takes_no_longer_than_its_parts() {
    for ranks in [2, 3, 4] {
        let output = job(ranks, &["long"]);
        assert!(output.status.success(), "{ranks}\n{}", text(&output));
    }
}

#[test]
fn storms_of_cancelled_operations_pass() {
    for (case, seed) in [("storm", "1"), ("storm2", "2")] {
        passes_with(case, seed);
    }
    for seed in ["3", "4"] {
        let output = job(4, &["storm", seed]);
        assert!(output.status.success(), "{seed}\n{}", text(&output));
    }
}

#[test]
fn more_ranks_than_cpus_make_progress() {
    passes("busy");
}

#[test]
fn an_idle_rank_takes_little_cpu_time() {
    let output = job(2, &["idle"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Two ranks run on one CPU, both in SCHED_FIFO from the first instruction to the last: a rank that
/// waits lets the other one run.
#[test]
fn elevated_ranks_that_share_a_cpu_make_progress() {
    let _guard = serialise_jobs();
    let mut command = mpirun_for(20, 2);
    // The kernel kills a rank that has kept the CPU for three seconds: the machine stays usable.
    command.args(["prlimit", "--rttime=2000000:3000000"]);
    command.args(["taskset", "-c", "0", "chrt", "-f", "10", PROGRAM, "busy"]);
    let output = command.output().unwrap();
    if text(&output).contains("failed to set pid") {
        println!("skipped: elevated_ranks_that_share_a_cpu_make_progress: no right to SCHED_FIFO");
        return;
    }
    assert!(output.status.success(), "{}", text(&output));
}

/// The ranks are elevated by a real daemon, which each has joined.
#[test]
fn ranks_join_the_board() {
    let _guard = serialise_jobs();
    let Some(daemon) = Daemon::start("ranks_join_the_board") else {
        return;
    };
    let mut command = mpirun(4);
    command.env("UPSHIFT_DAEMON_SOCKET", daemon.socket());
    let mut job = Running::start(command.args([PROGRAM, "board"]));
    job.line("all have joined");
    let status: serde_json::Value = serde_json::from_str(&daemon.status()).unwrap();
    assert_eq!(status["processes"].as_array().unwrap().len(), 4, "{status}");
    let (status, text) = job.end();
    assert!(status.success(), "{text}");
}

/// The library provides less than is needed: the functions that count are wrapped through MPI's
/// profiling interface.
#[test]
fn a_library_without_threads_is_refused() {
    let directory = std::env::temp_dir().join(format!("upshift-mpi-single-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, library) = (directory.join("single.c"), directory.join("single.so"));
    std::fs::write(
        &source,
        "#include <mpi.h>\nint MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {\n\
         int code = PMPI_Init_thread(argc, argv, MPI_THREAD_SINGLE, provided);\n\
         *provided = MPI_THREAD_SINGLE;\nreturn code;\n}\n",
    )
    .unwrap();
    let mut compile = Command::new("mpicc");
    compile
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    assert!(compile.status().unwrap().success());
    for (case, needed) in [("points", "Funneled"), ("points2", "Serialized")] {
        let _guard = serialise_jobs();
        // With two ranks their messages may be mixed in a line.
        let mut command = mpirun(1);
        command
            .arg("-x")
            .arg(format!("LD_PRELOAD={}", library.display()));
        let output = command.args([PROGRAM, case]).output().unwrap();
        let text = text(&output);
        assert!(!output.status.success(), "{text}");
        let expected = format!("provides Single thread support where {needed} is needed");
        assert!(text.contains(&expected), "{text}");
    }
    let _ = std::fs::remove_dir_all(directory);
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
