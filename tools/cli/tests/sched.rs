//! Runs `upshift sched` as a user does: results, files, errors. Started commands spin for a few
//! seconds at most.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use upshift_elevate::sys::{Kernel, Sys};
use upshift_elevate::{Elevator, Policy, Priority, Rights};

fn sched(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upshift"));
    command.arg("sched").args(args).output().unwrap()
}

/// Runs a command that must fail; returns its standard error.
fn error(args: &[&str]) -> String {
    let output = sched(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns a CPU that this process may use, as text.
fn cpu() -> String {
    let allowed = Kernel.sched_getaffinity(0).unwrap();
    allowed.iter().last().unwrap().to_string()
}

/// If this machine does not permit SCHED_FIFO, prints the reason and returns false.
fn is_permitted() -> bool {
    let missing = Rights::probe().require(Priority::of::<45>()).err();
    if let Some(missing) = &missing {
        eprintln!("skipped: {missing}");
    }
    missing.is_none()
}

/// A shell that spins until it is ended.
const SPIN: &str = "sh -c 'while :; do :; done'";

struct KillOnDrop(Child);

impl KillOnDrop {
    fn start(command: &mut Command) -> KillOnDrop {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        KillOnDrop(command.spawn().unwrap())
    }

    fn is_elevated(&self) -> bool {
        Policy::of(&Kernel, self.0.id() as i32).is_ok_and(|policy| policy.looks_elevated())
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Options of a run of 0.2 s on `cpu` that prints JSON.
fn brief(cpu: &str) -> [&str; 7] {
    [
        "--cpu",
        cpu,
        "--min-slice",
        "50us",
        "--for",
        "200ms",
        "--json",
    ]
}

#[test]
fn a_signal_is_handled_while_tasks_compute_on_every_cpu() {
    if !is_permitted() {
        return;
    }
    let cpus: Vec<String> = (Kernel.sched_getaffinity(0).unwrap().iter())
        .map(|cpu| cpu.to_string())
        .collect();
    // This thread is elevated above the scheduler, because otherwise the test would wait as well.
    let elevator = Elevator::builder().build().unwrap();
    let _above = elevator.elevate_current(Priority::of::<47>()).unwrap();
    let wait_until = |condition: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !condition() {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "no change in 10 s"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        began.elapsed()
    };
    let time_to_restore = || {
        // The spinners have their own CPU limit, since this process may be killed.
        let spin = "ulimit -t 20; while :; do :; done";
        let spinner = |_| KillOnDrop::start(Command::new("sh").args(["-c", spin]));
        let spinners: Vec<KillOnDrop> = cpus.iter().map(spinner).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_upshift"));
        command.args([
            "sched",
            "rr",
            "--open",
            "0",
            "--min-slice",
            "50us",
            "--for",
            "8s",
        ]);
        command.args(["--cpu", &cpus.join(",")]);
        for spinner in &spinners {
            command.args(["--pid", &spinner.0.id().to_string()]);
        }
        let scheduler = KillOnDrop::start(&mut command);
        wait_until(&|| spinners.iter().all(KillOnDrop::is_elevated));
        std::thread::sleep(Duration::from_millis(20));
        let pid = Pid::from_child(&scheduler.0);
        kill_process(pid, Signal::TERM).unwrap();
        wait_until(&|| !spinners.iter().any(KillOnDrop::is_elevated))
    };
    // If the scheduler's main thread were not elevated, it would handle the signal only when the
    // kernel throttles SCHED_FIFO, which is after most of the kernel's period.
    let period = std::fs::read_to_string("/proc/sys/kernel/sched_rt_period_us").unwrap();
    let period = Duration::from_micros(period.trim().parse().unwrap());
    let best = (0..3).map(|_| time_to_restore()).min().unwrap();
    assert!(best < period / 4, "tasks were restored after {best:?}");
}

#[test]
fn two_commands_take_turns_and_leave_a_trace_and_a_drawing() {
    if !is_permitted() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("upshift-sched-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (svg, trace) = (folder.join("a.svg"), folder.join("a.jsonl"));
    let output = sched(&[
        "rr",
        "--cpu",
        &cpu(),
        "--for",
        "400ms",
        "--min-slice",
        "50us",
        "--json",
        "--timeline",
        svg.to_str().unwrap(),
        "--trace",
        trace.to_str().unwrap(),
        "--run",
        SPIN,
        "--run",
        SPIN,
    ]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["tasks"].as_array().unwrap().len(), 2);
    // Each of the two tasks should get half; the margin is for other programs.
    for task in value["tasks"].as_array().unwrap() {
        assert!(
            (0.2..0.8).contains(&task["share"].as_f64().unwrap()),
            "{value}"
        );
    }
    assert!(value["switches"].as_u64().unwrap() > 10);
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"));
    let lines = std::fs::read_to_string(&trace).unwrap();
    assert!(lines.lines().count() > 10);
    for line in lines.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn output_files_and_the_printed_result_do_not_depend_on_each_other() {
    if !is_permitted() {
        return;
    }
    let (cpu, full) = (cpu(), std::path::Path::new("/dev/full"));
    if !full.exists() {
        eprintln!("skipped: there is no /dev/full");
        return;
    }
    let begin = ["rr", "--cpu", &cpu, "--for", "100ms", "--min-slice", "50us"];
    let task = ["--run", SPIN];
    for file in ["--timeline", "--trace"] {
        let output = sched(&[&begin[..], &task, &["--json", file, "/dev/full"]].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("cannot write /dev/full"), "{text}");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["tasks"].as_array().unwrap().len(), 1);
        // Conversely, the file is written even if nothing reads the result.
        let kept = std::env::temp_dir().join(format!("upshift-kept-{}", std::process::id()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_upshift"));
        command.arg("sched").args(begin).args(task);
        let command = command.args([file, kept.to_str().unwrap()]);
        let mut unread = command.stdout(Stdio::piped()).spawn().unwrap();
        drop(unread.stdout.take());
        assert!(unread.wait().unwrap().success());
        assert!(std::fs::metadata(&kept).unwrap().len() > 0);
        std::fs::remove_file(&kept).unwrap();
        // An impossible path is an error before anything is started.
        let marker = std::env::temp_dir().join(format!("upshift-marker-{}", std::process::id()));
        let touch = ["--run", &format!("touch {}", marker.display())];
        let text = error(&[&begin[..], &touch, &[file, "/nonexistent/file"]].concat());
        assert!(text.contains("/nonexistent/file"), "{text}");
        assert!(!marker.exists());
    }
}

#[test]
fn ctrl_z_does_not_leave_the_cpu_to_the_running_task() {
    if !is_permitted() {
        return;
    }
    let spinner =
        KillOnDrop::start(Command::new("sh").args(["-c", "ulimit -t 20; while :; do :; done"]));
    let (cpu, pid) = (cpu(), spinner.0.id().to_string());
    let mut command = Command::new(env!("CARGO_BIN_EXE_upshift"));
    command.args(["sched", "rr", "--min-slice", "50us", "--for", "20s"]);
    let mut scheduler = KillOnDrop::start(command.args(["--cpu", &cpu, "--pid", &pid]));
    let wait_until = |what: &str, condition: &mut dyn FnMut() -> bool| {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < Duration::from_secs(15), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_until("the process is scheduled", &mut || spinner.is_elevated());
    kill_process(Pid::from_child(&scheduler.0), Signal::TSTP).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    wait_until("open pieces continue", &mut || !spinner.is_elevated());
    wait_until("turns continue", &mut || spinner.is_elevated());
    // While the process is scheduled, a second scheduler is refused.
    let second = ["rr", "--min-slice", "50us", "--for", "1s", "--cpu", &cpu];
    let refusal = error(&[&second[..], &["--pid", &pid]].concat());
    assert!(refusal.contains("another `upshift sched`"), "{refusal}");
    kill_process(Pid::from_child(&scheduler.0), Signal::INT).unwrap();
    let status = scheduler.0.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(!spinner.is_elevated());
}

#[test]
fn wrong_command_lines_are_refused_with_a_remedy() {
    let cpu = cpu();
    for (args, expected) in [
        (&["rr", "--cpu", "4000", "--pid", "1"][..], "available"),
        (&["rr", "--cpu", &cpu], "--pid"),
        (&["table", "--cpu", &cpu, "--pid", "1"], "needs a file"),
        (
            &["rr", "some-file", "--cpu", &cpu, "--pid", "1"],
            "unexpected",
        ),
        (
            &["table", "/nonexistent", "--cpu", &cpu, "--pid", "1"],
            "/nonexistent",
        ),
        (
            &["rr", "--cpu", &cpu, "--pid", "7", "--pid", "7"],
            "named twice",
        ),
        (&["rr", "--cpu", &cpu, "--run", "sh 'x"], "close all quotes"),
        (&["rr", "--cpu", &cpu, "--pid", "x"], "not a process id"),
        (
            &["rr", "--cpu", &cpu, "--pid", "1", "--for", "1e19s"],
            "not a duration",
        ),
        (
            &["rr", "--cpu", &cpu, "--pid", "1", "--for", "99999999999s"],
            "too long",
        ),
        (
            &["rr", "--cpu", &cpu, "--pid", "1", "--interval", "0ms"],
            "is zero",
        ),
        (
            &["rr", "--cpu", &cpu, "--pid", "1", "--duration", "1e19s"],
            "not a duration",
        ),
        (
            &["rr", "--cpu", &cpu, "--pid", "1", "--open", "95%"],
            "nothing to schedule",
        ),
    ] {
        let text = error(args);
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[test]
fn wrong_tasks_and_parameters_are_refused() {
    if !is_permitted() {
        return;
    }
    let cpu = cpu();
    let file = std::env::temp_dir().join(format!("upshift-table-{}", std::process::id()));
    std::fs::write(&file, "a 5ms\nnobody 5ms\n").unwrap();
    let table = file.to_str().unwrap();
    let min_slice = ["--cpu", &cpu, "--min-slice", "50us"];
    for (args, expected) in [
        (&["rr", "--pid", "4194305"][..], "no process 4194305"),
        (&["rr", "--pid", "2147483647=3"], "unexpected"),
        (&["weighted", "--pid", "1=0"], "shares"),
        (&["priority", "--pid", "1=64"], "not a level"),
        (&["edf", "--pid", "1=5ms"], "PERIOD/BUDGET"),
        (&["edf", "--pid", "1=5ms/10us"], "shortest timer"),
        (&["edf", "--pid", "1=5ms/5ms"], "add up"),
        (
            &["edf", "--pid", "1=5ms/20ms"],
            "a budget of 20ms is longer than its period of 5ms",
        ),
        (&["table", table, "--pid", "1=a"], "line 2: `nobody`"),
        (&["rr", "--run", "/nonexistent/program"], "cannot start"),
    ] {
        let text = error(&[args, &min_slice].concat());
        assert!(text.contains(expected), "{args:?}: {text}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn processes_are_named_by_their_command() {
    if !is_permitted() {
        return;
    }
    // The kernel keeps at most 15 characters of the name.
    let name = format!("ups-{}", std::process::id());
    let program = std::env::temp_dir().join(&name);
    // A separate process makes the copy. A child that another test forks from this process could
    // hold the file open for writing, and then the copy could not be executed.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
    assert!(copied.unwrap().success());
    let start = |_| {
        let process = KillOnDrop::start(Command::new(&program).arg("20"));
        let comm = format!("/proc/{}/comm", process.0.id());
        while std::fs::read_to_string(&comm).unwrap().trim() != name {
            std::thread::sleep(Duration::from_millis(1));
        }
        process
    };
    let sleepers: Vec<KillOnDrop> = (0..2).map(start).collect();
    let cpu = cpu();
    let fixed = brief(&cpu);
    let glob = format!("{}*=3", &name[..name.len() - 1]);
    let output = sched(&[&["weighted", "--comm", &glob][..], &fixed].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: serde_json::Value = serde_json::from_str(&text).expect(&errors);
    let tasks = report["tasks"].as_array().unwrap();
    let mut labels: Vec<&str> = tasks.iter().filter_map(|it| it["label"].as_str()).collect();
    labels.sort_unstable();
    let mut pids: Vec<String> = sleepers
        .iter()
        .map(|sleeper| sleeper.0.id().to_string())
        .collect();
    pids.sort();
    assert_eq!(labels, pids);
    let none = error(&[&["rr", "--comm", "no-such-program"][..], &fixed].concat());
    assert!(none.contains("no process fits"), "{none}");
    std::fs::remove_file(&program).unwrap();
}

#[test]
fn the_status_of_a_command_is_returned_even_if_the_command_is_short() {
    if !is_permitted() {
        return;
    }
    let (cpu, spin) = (cpu(), "ulimit -t 20; while :; do :; done");
    for (command, more, expected) in [
        (&["true"][..], &[][..], 0),
        (&["false"], &[], 1),
        (&["sh", "-c", "sleep 0.1; exit 7"], &[], 7),
        (&["sh", "-c", "kill -9 $$"], &[], 137),
        (&["sh", "-c", spin], &["--for", "200ms"], 0),
        // The status of other commands is ignored. An ended command keeps its index among the
        // tasks.
        (&["true"], &["--run", "false"], 0),
    ] {
        // Whether a short command ends before the scheduler attaches to it depends on timing.
        for _ in 0..5 {
            let begin = ["priority", "--cpu", &cpu, "--min-slice", "50us", "--json"];
            let output = sched(&[&begin[..], more, &["--arg", "3", "--"], command].concat());
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(expected),
                "{command:?}: {errors}"
            );
            let text = String::from_utf8(output.stdout).unwrap();
            let report: serde_json::Value = serde_json::from_str(&text).expect(&text);
            let tasks = report["tasks"].as_array().unwrap();
            assert_eq!(
                tasks.len(),
                1 + usize::from(more.contains(&"--run")),
                "{text}"
            );
        }
    }
}

#[test]
fn a_matching_process_that_cannot_be_scheduled_is_left_out() {
    if !is_permitted() {
        return;
    }
    let name = format!("upl-{}", std::process::id());
    let program = std::env::temp_dir().join(&name);
    // A separate process makes the copy. A child that another test forks from this process could
    // hold the file open for writing, and then the copy could not be executed.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
    assert!(copied.unwrap().success());
    let start = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        let process = KillOnDrop::start(command.args(&words[1..]).arg("20"));
        let comm = format!("/proc/{}/comm", process.0.id());
        while std::fs::read_to_string(&comm).unwrap().trim() != name {
            std::thread::sleep(Duration::from_millis(1));
        }
        process
    };
    let (cpu, path) = (cpu(), program.to_str().unwrap());
    let fixed = brief(&cpu);
    let limited = start(&["prlimit", "--rttime=100000", path]);
    // If no other process matches, the command fails.
    let reason = error(&[&["rr", "--comm", &name][..], &fixed].concat());
    assert!(reason.contains("RLIMIT_RTTIME"), "{reason}");
    let _ordinary = start(&[path]);
    let output = sched(&[&["rr", "--comm", &name][..], &fixed].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("left out"), "{errors}");
    let number = limited.0.id().to_string();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let tasks = report["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 2);
    for task in tasks {
        assert_eq!(task["left_out"], task["label"] == number.as_str());
    }
    let named = error(&[&["rr", "--pid", &number][..], &fixed].concat());
    assert!(named.contains("RLIMIT_RTTIME"), "{named}");
    std::fs::remove_file(&program).unwrap();
}
