//! The demo's promises around its measurements: Ctrl-C, children, bad paths. Loopback only.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift");

fn report_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Processes that were started by `pid`, from `/proc`.
fn children_of(pid: u32) -> Vec<u32> {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|child| {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit_once(')')
                .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
            parent == Some(pid)
        })
        .collect()
}

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn kill(signal: &str, pid: u32) {
    let pid = pid.to_string();
    assert!(
        Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", signal, &pid])
            .status()
            .unwrap()
            .success()
    );
}

fn start(report: &PathBuf) -> (Child, Vec<u32>) {
    let child = Command::new(PROGRAM)
        .args(["demo", "--quick", "--only", "1", "--report"])
        .arg(report)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut children = Vec::new();
    // Two servers and a client.
    wait_until("a measurement", || {
        children = children_of(child.id());
        children.len() >= 3
    });
    (child, children)
}

#[test]
fn ctrl_c_stops_the_children_and_keeps_an_older_report() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let report = report_path(&format!("interrupted-{signal}.html"));
        std::fs::write(&report, "older").unwrap();
        let (child, children) = start(&report);
        kill(signal, child.id());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert!(String::from_utf8_lossy(&output.stderr).contains("report was not written"));
        assert!(children.iter().all(|&pid| !alive(pid)), "a child survived");
        assert_eq!(std::fs::read_to_string(&report).unwrap(), "older");
    }
}

#[test]
fn children_die_with_a_killed_demo() {
    let (mut child, children) = start(&report_path("killed.html"));
    kill("KILL", child.id());
    child.wait().unwrap();
    wait_until("the end of the children", || {
        children.iter().all(|&pid| !alive(pid))
    });
}

#[test]
fn a_report_that_cannot_be_written_is_refused_at_once() {
    let began = Instant::now();
    let output = Command::new(PROGRAM)
        .args(["demo", "--report", "/proc/no/report.html"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--report FILE"));
    assert!(
        // The measurements would take longer, however slow the machine is.
        began.elapsed() < Duration::from_secs(20),
        "it was found out too late"
    );
}

#[test]
fn without_a_runtime_it_is_refused_before_anything_is_measured() {
    // Standard streams and the libraries at start, one after the other: none is left for a runtime.
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -n 4; exec \"$0\" demo --report \"$1\"",
            PROGRAM,
        ])
        .arg(report_path("no-ring.html"))
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(
        err.contains("no runtime can be made") && err.contains("ulimit -n"),
        "{err}"
    );
    assert_eq!(out, "");
}

#[test]
fn it_ends_with_a_chart_and_a_verdict() {
    let report = report_path("verdict.html");
    let output = Command::new(PROGRAM)
        .args(["demo", "--quick", "--only", "2", "--report"])
        .arg(&report)
        .output()
        .unwrap();
    let (out, err) = (output.stdout, output.stderr);
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    assert!(output.status.success(), "{err}");
    assert!(err.contains("(2/6) "), "{err}");
    let page = std::fs::read_to_string(&report).unwrap();
    // There is none where the machine is so busy that a run had no reply.
    let (chart, replies) = (
        "Median latency at 130 % load",
        page.contains("class=\"verdict\""),
    );
    assert_eq!(page.contains(chart), replies);
    assert_eq!(out.contains(chart), replies, "{out}");
}

#[test]
fn the_experiments_on_preemption_end_and_report_by_class() {
    let report = report_path("preemption.html");
    let output = Command::new(PROGRAM)
        .args(["demo", "--quick", "--only", "4,5", "--report"])
        .arg(&report)
        .output()
        .unwrap();
    let (out, err) = (output.stdout, output.stderr);
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    assert!(output.status.success(), "{err}");
    for word in ["preemption off", "long", "p99.9", "no reply"] {
        assert!(out.contains(word), "{word}: {out}");
    }
    // All of them, if the endless coroutine is there before the first and the machine is no faster than it was.
    let (_, told) = out.split_once("Without preemption ").expect("the ping");
    let told = told.split_once(" had no reply").expect("of pings").0;
    let (unanswered, sent) = told.split_once(" of ").expect("as many of so many");
    assert!(unanswered.parse::<u32>().is_ok(), "{told}: {out}");
    assert_eq!(sent, "500 pings", "{out}");
    // Where the right to preempt is missing the remedy is there instead of the figures.
    let told = ["preemption on", "Skipped", "run with preemption failed"];
    assert!(told.iter().any(|words| out.contains(words)), "{out}");
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("Short requests: latency by percentile"));
    // A picture of the server at work, or why there is none.
    let drawn = page.contains("<figure class=\"wide\"><svg");
    assert!(drawn || page.contains("There is no timeline"));
    assert!(page.contains("Pings sent and answered"));
}
