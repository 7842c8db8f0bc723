//! Checks how the demo handles Ctrl-C, its child processes and bad paths. Uses only the loopback
//! interface.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift");

fn report_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Returns the processes that `pid` has started, from `/proc`.
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

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn wait_until(event: &str, mut has_happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_happened() {
        assert!(Instant::now() < deadline, "{event} did not happen");
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
    // A measurement has two servers.
    wait_until("a measurement", || {
        children = children_of(child.id());
        children.len() >= 2
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
        assert!(
            children.iter().all(|&pid| !is_alive(pid)),
            "a child survived"
        );
        assert_eq!(std::fs::read_to_string(&report).unwrap(), "older");
    }
}

#[test]
fn children_die_with_a_killed_demo() {
    let (mut child, children) = start(&report_path("killed.html"));
    kill("KILL", child.id());
    child.wait().unwrap();
    wait_until("the end of the children", || {
        children.iter().all(|&pid| !is_alive(pid))
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
        // However slow the machine is, the measurements would take longer.
        began.elapsed() < Duration::from_secs(20),
        "the error came too late"
    );
}

#[test]
fn without_a_runtime_the_demo_fails_before_any_measurement() {
    // The limit leaves descriptors for the standard streams and, one at a time, for the libraries
    // at start, but none for a runtime.
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
        err.contains("cannot create a runtime") && err.contains("ulimit -n"),
        "{err}"
    );
    assert_eq!(out, "");
}

#[test]
fn each_part_ends_with_verdicts_and_is_in_the_report() {
    let report = report_path("verdicts.html");
    let output = Command::new(PROGRAM)
        .args(["demo", "--quick", "--report"])
        .arg(&report)
        .output()
        .unwrap();
    let (out, err) = (output.stdout, output.stderr);
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    assert!(output.status.success(), "{err}");
    assert!(err.contains("(1/3) ") && err.contains("(3/3) "), "{err}");
    let wide = out.lines().find(|line| line.chars().count() > 100);
    assert_eq!(wide, None);
    let page = std::fs::read_to_string(&report).unwrap();
    for title in ["1. Eight levels", "2. Long requests", "3. An urgent server"] {
        let (_, part) = out.split_once(title).expect(title);
        // A run with the daemon may be impossible here; the part then reports that.
        let verdicts = ["better  ", "worse  ", "?  ", "missing  "];
        assert!(verdicts.iter().any(|word| part.contains(word)), "{part}");
        let (_, part) = page.split_once(title).expect(title);
        assert!(part.contains("<svg") && part.contains("<li>"));
    }
}
