//! Runs every case as a job of `mpirun` with 1, 2 and 4 ranks. A job that does not end in time is
//! killed, and its test fails.

use std::process::{Command, Output};

use upshift_mpi_cases::{Daemon, Running, mpirun, mpirun_for, serialise_jobs, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift-mpi-cases");
const RANKS: [usize; 3] = [1, 2, 4];

fn run_job(ranks: usize, arguments: &[&str]) -> Output {
    let _guard = serialise_jobs();
    let mut command = mpirun(ranks);
    command.arg(PROGRAM).args(arguments).output().unwrap()
}

fn assert_passes(name: &str) {
    assert_passes_with_seed(name, "1");
}

fn assert_passes_with_seed(name: &str, seed: &str) {
    for ranks in RANKS {
        let output = run_job(ranks, &[name, seed]);
        let text = text(&output);
        assert!(
            output.status.success() && text.contains("ok"),
            "{name} on {ranks} ranks: {}\n{text}",
            output.status
        );
    }
}

/// Asserts that the job ends in time, and that its message contains the last rank, `reason`, and
/// the last request of the rank.
fn assert_last_rank_is_named(name: &str, reason: &str) {
    for ranks in [2, 4] {
        let output = run_job(ranks, &[name]);
        let text = text(&output);
        assert!(!output.status.success(), "{name}\n{text}");
        // `timeout` exits with 124 if it had to kill the job.
        assert_ne!(output.status.code(), Some(124), "{name} hangs\n{text}");
        let messages: Vec<_> = text
            .lines()
            .filter(|line| line.contains("the job ends"))
            .collect();
        assert_eq!(messages.len(), 1, "{name}\n{text}");
        assert!(
            messages[0].contains(&format!("rank {} ", ranks - 1)) && messages[0].contains(reason),
            "{name}\n{text}"
        );
        assert!(
            messages[0].contains("its last level-0 request: #1 of rank 0, 77 bytes"),
            "{name}\n{text}"
        );
    }
}

#[test]
fn messages_arrive() {
    assert_passes("points");
}

#[test]
fn messages_arrive_with_two_vcpus() {
    assert_passes("points2");
}

#[test]
fn collectives_give_the_expected_results() {
    assert_passes("collectives");
}

#[test]
fn collectives_give_the_expected_results_with_two_vcpus() {
    assert_passes("collectives2");
}

#[test]
fn requests_run_at_their_level() {
    assert_passes("requests");
}

#[test]
fn an_urgent_request_overtakes_batch_requests() {
    assert_passes("overtakes");
}

#[test]
fn an_urgent_request_overtakes_batch_requests_with_preemption() {
    assert_passes("preemptible");
}

#[test]
fn dropped_and_mismatched_operations_harm_no_other_operation() {
    assert_passes("hostile");
}

#[test]
fn a_huge_message_arrives() {
    let output = run_job(2, &["huge"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Some of these jobs have more ranks than CPUs.
#[test]
fn operations_of_all_sizes_give_the_expected_results() {
    for ranks in [2, 3, 4] {
        let output = run_job(ranks, &["sizes"]);
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
fn a_long_collective_takes_about_as_long_as_its_parts() {
    for ranks in [2, 3, 4] {
        let output = run_job(ranks, &["long"]);
        assert!(output.status.success(), "{ranks}\n{}", text(&output));
    }
}

#[test]
fn many_cancelled_operations_harm_no_other_operation() {
    for (case, seed) in [("storm", "1"), ("storm2", "2")] {
        assert_passes_with_seed(case, seed);
    }
    for seed in ["3", "4"] {
        let output = run_job(4, &["storm", seed]);
        assert!(output.status.success(), "{seed}\n{}", text(&output));
    }
}

#[test]
fn more_ranks_than_cpus_make_progress() {
    assert_passes("busy");
}

#[test]
fn an_idle_rank_uses_little_cpu_time() {
    let output = run_job(2, &["idle"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Two ranks run on one CPU, both in SCHED_FIFO for their whole lifetime. A rank that waits must
/// let the other rank run.
#[test]
fn elevated_ranks_that_share_a_cpu_make_progress() {
    let _guard = serialise_jobs();
    let mut command = mpirun_for(20, 2);
    // The kernel kills a rank that occupies the CPU for three seconds, so that the machine stays
    // usable.
    command.args(["prlimit", "--rttime=2000000:3000000"]);
    command.args(["taskset", "-c", "0", "chrt", "-f", "10", PROGRAM, "busy"]);
    let output = command.output().unwrap();
    if text(&output).contains("failed to set pid") {
        println!("skipped: elevated_ranks_that_share_a_cpu_make_progress: no right to SCHED_FIFO");
        return;
    }
    assert!(output.status.success(), "{}", text(&output));
}

/// All ranks publish the urgency of their work to a real daemon by shared memory (the *board*). The
/// daemon must give them real-time priority in turn.
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

/// A preloaded library replaces `MPI_Init_thread`, by MPI's profiling interface, so that MPI
/// provides less thread support than the case needs.
#[test]
fn an_mpi_library_without_thread_support_is_refused() {
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
        // A job with several ranks could mix their messages in a line.
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
    assert_last_rank_is_named("killed", "has died");
}

#[test]
fn a_rank_that_hangs_is_named() {
    assert_last_rank_is_named("hung", "has not polled");
}

#[test]
fn a_rank_that_fails_is_named() {
    assert_last_rank_is_named("error", "has died");
    assert_last_rank_is_named("panic", "has died");
}
