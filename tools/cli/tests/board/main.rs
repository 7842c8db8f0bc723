//! Runs a daemon that the test owns, with servers and batch jobs that join its *board*, the shared
//! memory on which processes publish how urgent their work is.

mod burning;
mod preemptible;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift");
/// Time limit of each wait.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A child that is killed when the test ends early.
struct Running {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    /// Starts `upshift ARGS` and waits for its first line.
    fn start(socket: &Path, args: &[&str]) -> (Running, String) {
        let mut child = Command::new(PROGRAM)
            .args(args)
            .env("UPSHIFT_DAEMON_SOCKET", socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        (Running { child, output }, line)
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let kill = ["-c", "kill -s \"$0\" \"$1\"", name, &pid];
        assert!(Command::new("sh").args(kill).status().unwrap().success());
    }

    /// Waits for the child's end; returns the rest of its output.
    fn end(mut self) -> String {
        let deadline = Instant::now() + TIMEOUT;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "a child does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn upshift(socket: &Path, args: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(args)
        .env("UPSHIFT_DAEMON_SOCKET", socket)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Path of a test's socket, in a private directory that is removed with it, because killed daemons
/// leave files.
struct Socket(PathBuf);

impl std::ops::Deref for Socket {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

fn socket(test: &str) -> Socket {
    let name = format!("upshift-{test}-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    Socket(directory.join("daemon.sock"))
}

fn daemon(socket: &Path, more: &[&str]) -> Running {
    let mut args = vec!["daemon", "--socket", socket.to_str().unwrap()];
    args.extend(more);
    let (daemon, line) = Running::start(socket, &args);
    assert!(line.starts_with("listening"), "{line}");
    daemon
}

/// Returns the registered processes, as the daemon reports them.
fn registered(socket: &Path) -> Vec<serde_json::Value> {
    let output = upshift(socket, &["daemon", "--status"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let census: serde_json::Value = match serde_json::from_str(&text) {
        Ok(census) => census,
        // There is no daemon yet, or no longer.
        Err(_) => return Vec::new(),
    };
    census["processes"].as_array().unwrap().clone()
}

fn wait_for(socket: &Path, count: usize) {
    let deadline = Instant::now() + TIMEOUT;
    while registered(socket).len() != count {
        assert!(
            Instant::now() < deadline,
            "expected {count} registered processes: {:?}",
            registered(socket)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn server(socket: &Path) -> (Running, String) {
    let args = ["spin-server", "--listen", "127.0.0.1:0@2", "--pin", "0"];
    let (server, line) = Running::start(socket, &[&args[..], &["--board", "required"]].concat());
    let address = line.trim().strip_prefix("listening on ").expect(&line);
    (server, address.to_owned())
}

fn assert_is_answered(socket: &Path, address: &str) {
    let load = ["load", "spin", "--connect", address, "--connections", "2"];
    let time = ["--warmup", "50ms", "--duration", "200ms", "--rate", "100"];
    let output = upshift(socket, &[load, time].concat());
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn board_required_fails_without_a_daemon_and_names_the_remedy() {
    let socket = socket("nobody");
    let args = ["spin-server", "--listen", "127.0.0.1:0"];
    let output = upshift(&socket, &[&args[..], &["--board", "required"]].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("upshift daemon"), "{text}");
}

#[test]
fn a_server_joins_serves_and_leaves() {
    let socket = socket("joins");
    let daemon = daemon(&socket, &[]);
    let (server, address) = server(&socket);
    wait_for(&socket, 1);
    let process = &registered(&socket)[0];
    assert_eq!(process["pid"], server.child.id());
    assert_is_answered(&socket, &address);
    server.signal("TERM");
    server.end();
    wait_for(&socket, 0);
    daemon.signal("TERM");
    daemon.end();
}

#[test]
fn a_server_continues_when_the_daemon_is_killed_and_joins_the_next() {
    let socket = socket("rejoins");
    let first = daemon(&socket, &[]);
    let (server, address) = server(&socket);
    wait_for(&socket, 1);
    first.signal("KILL");
    first.end();
    assert_is_answered(&socket, &address);
    let _second = daemon(&socket, &[]);
    wait_for(&socket, 1);
    assert_is_answered(&socket, &address);
    server.signal("TERM");
    server.end();
}

#[test]
fn a_restarted_daemon_has_its_clients_back_within_100_ms() {
    let socket = socket("back");
    let mut daemon = Some(self::daemon(&socket, &[]));
    let (server, _) = server(&socket);
    wait_for(&socket, 1);
    let mut delays_ms = Vec::new();
    for _ in 0..5 {
        let former = daemon.take().unwrap();
        former.signal("TERM");
        former.end();
        daemon = Some(self::daemon(&socket, &[]));
        wait_for(&socket, 1);
        let output = upshift(&socket, &["daemon", "--status"]);
        let census: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let ms = |value: &serde_json::Value| value.as_f64().unwrap();
        delays_ms.push(ms(&census["uptime_ms"]) - ms(&census["processes"][0]["joined_ms"]));
    }
    println!("ms from the daemon's start until its client is back: {delays_ms:?}");
    // Clients look for a daemon every 50 ms. At least one restart should happen while no other
    // program delays it.
    assert!(
        delays_ms.iter().any(|&ms| ms < 100.0),
        "delays in ms: {delays_ms:?}"
    );
    server.signal("TERM");
    server.end();
}

#[test]
fn a_daemon_and_its_guardian_lock_their_memory() {
    let socket = socket("memory");
    let daemon = daemon(&socket, &[]);
    let pid = daemon.child.id();
    let locked = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        let kib = line.and_then(|text| text.split_whitespace().next());
        kib.is_some_and(|kib| kib != "0")
    };
    let effective = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = effective
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:\t"));
    let effective = u64::from_str_radix(effective.unwrap(), 16).unwrap();
    const IPC_LOCK: u64 = 1 << 14;
    const SYS_NICE: u64 = 1 << 23;
    if effective & IPC_LOCK == 0 || effective & SYS_NICE == 0 {
        eprintln!("skipped: needs CAP_IPC_LOCK and CAP_SYS_NICE");
        return;
    }
    let children = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .flatten();
        let read_children =
            |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
        let all: Vec<String> = tasks.filter_map(|task| read_children(task).ok()).collect();
        let all = all.join(" ");
        let pids = all.split_whitespace().map(|pid| pid.parse().unwrap());
        pids.collect::<Vec<u32>>()
    };
    let deadline = Instant::now() + TIMEOUT;
    while !locked(pid) || !children().into_iter().any(locked) {
        assert!(
            Instant::now() < deadline,
            "the memory of the daemon or of its guardian is not locked"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_daemon_continues_when_nobody_reads_its_standard_error() {
    let socket = socket("unread");
    let Ok(full) = std::fs::File::create("/dev/full") else {
        eprintln!("skipped: there is no /dev/full");
        return;
    };
    let config = socket.with_extension("toml");
    std::fs::write(&config, "[limits]\nconnections_per_user = 1\n").unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["daemon", "--cooperative", "--socket"]);
    command.arg(&*socket).arg("--config").arg(&config);
    let mut child = command.stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let mut daemon = Running { child, output };
    assert!(line.starts_with("listening"), "{line}");
    let board = upshift_board::Board::new().unwrap();
    let threads = Vec::new();
    board
        .join(&socket, &[upshift_board::VcpuSpec { cpu: 0, threads }])
        .unwrap();
    // The connection of this command exceeds the limit, so the command reports an error.
    let refused = upshift(&socket, &["daemon", "--status"]);
    assert!(!refused.status.success());
    assert!(board.census().is_ok(), "the daemon does not answer");
    assert!(daemon.child.try_wait().unwrap().is_none());
    daemon.signal("TERM");
    daemon.end();
}

#[test]
fn a_daemon_notifies_its_service_manager_of_start_life_and_end() {
    let path = socket("notify");
    let file = path.with_extension("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&file).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["daemon", "--cooperative", "--socket"]);
    command.arg(&*path).stdout(Stdio::piped());
    command
        .env("NOTIFY_SOCKET", &file)
        .env("WATCHDOG_USEC", "4000000");
    let mut child = command.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let daemon = Running { child, output };
    let next = || {
        let mut text = [0; 200];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    assert_eq!(next(), "READY=1\nSTATUS=cooperative");
    // A daemon that has reported that it is ready answers.
    assert!(upshift(&path, &["daemon", "--status"]).status.success());
    assert_eq!(next(), "WATCHDOG=1");
    daemon.signal("TERM");
    while next() == "WATCHDOG=1" {}
    daemon.end();
}

#[test]
fn the_doctor_reports_features_and_finds_the_daemon() {
    let path = socket("doctor");
    let doctor = || {
        let output = upshift(&path, &["doctor", "--json"]);
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = all.as_array().unwrap().clone();
        let health_of = |feature: &str| {
            let found = all.iter().find(|it| it["what"] == feature).unwrap();
            found["health"].as_str().unwrap().to_string()
        };
        assert_eq!(output.status.success(), health_of("io_uring") != "no");
        health_of("daemon")
    };
    assert_eq!(doctor(), "note");
    let daemon = daemon(&path, &["--cooperative"]);
    assert_eq!(doctor(), "ok");
    let lines = upshift(&path, &["doctor"]);
    let lines = String::from_utf8(lines.stdout).unwrap();
    assert!(lines.contains("answers and is cooperative"), "{lines}");
    daemon.signal("TERM");
    daemon.end();
}

#[test]
fn the_doctor_finds_a_capable_program_that_every_user_may_execute() {
    let path = socket("capable");
    let copy = path.with_file_name("upshift");
    // A separate process makes the copy. A child that another test forks from this process could
    // hold the file open for writing, and then the copy could not be executed.
    let copied = Command::new("cp").arg(PROGRAM).arg(&copy).status();
    assert!(copied.unwrap().success());
    let setcap = Command::new("setcap")
        .args(["cap_sys_nice+ep", copy.to_str().unwrap()])
        .status();
    if !setcap.is_ok_and(|status| status.success()) {
        eprintln!("skipped: setcap is not there, or not permitted");
        return;
    }
    let health = |mode: u32| {
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(mode)).unwrap();
        let output = Command::new(&copy).args(["doctor", "--json"]).output();
        let all: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let mut all = all.as_array().unwrap().iter();
        let found = all.find(|it| it["what"] == "file rights").unwrap();
        found["health"].as_str().unwrap().to_string()
    };
    assert_eq!(health(0o755), "note");
    assert_eq!(health(0o750), "ok");
}

#[test]
fn an_incomplete_configuration_is_not_applied() {
    let socket = socket("half");
    let file = socket.with_extension("toml");
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let rule = |ceiling: u8| format!("[[rule]]\nuser = {uid}\nceiling = {ceiling}\n");
    std::fs::write(&file, rule(20)).unwrap();
    let daemon = daemon(
        &socket,
        &["--cooperative", "--config", file.to_str().unwrap()],
    );
    let board = upshift_board::Board::new().unwrap();
    let threads = Vec::new();
    board
        .join(&socket, &[upshift_board::VcpuSpec { cpu: 0, threads }])
        .unwrap();
    let ceiling = || {
        let census = board.census().unwrap();
        let census: serde_json::Value = serde_json::from_str(&census.json).unwrap();
        census["processes"][0]["ceiling"].as_u64().unwrap()
    };
    assert_eq!(ceiling(), 20);
    let ceilings_until = |expected: u64| {
        let (deadline, mut seen) = (Instant::now() + TIMEOUT, vec![ceiling()]);
        while seen.last() != Some(&expected) {
            assert!(Instant::now() < deadline, "{seen:?}");
            std::thread::sleep(Duration::from_millis(1));
            seen.push(ceiling());
        }
        seen
    };
    // The file is first empty, as a full disk or an editor leaves it, and then gets the new content
    // in time.
    std::fs::write(&file, "").unwrap();
    daemon.signal("HUP");
    std::thread::sleep(Duration::from_millis(500));
    std::fs::write(&file, rule(21)).unwrap();
    daemon.signal("HUP");
    let seen = ceilings_until(21);
    assert!(
        seen.iter().all(|level| [20, 21].contains(level)),
        "{seen:?}"
    );
    // The file is written piece by piece. The writer may be delayed for longer than a daemon can
    // wait, so only one attempt must succeed.
    let is_applied_whole = |ceiling: u8| {
        let text = format!(
            "ceiling = 3\n{}{}",
            "# a rule follows\n".repeat(20),
            rule(ceiling)
        );
        let mut pieces = std::fs::File::create(&file).unwrap();
        daemon.signal("HUP");
        for line in text.lines() {
            use std::io::Write;
            writeln!(pieces, "{line}").unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        let seen = ceilings_until(ceiling.into());
        println!("{seen:?}");
        !seen.contains(&3)
    };
    assert!((22..26).any(is_applied_whole));
    daemon.signal("TERM");
    daemon.end();
}

#[test]
fn a_configuration_is_checked_without_a_daemon() {
    let socket = socket("checked");
    let file = socket.with_extension("toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = upshift(
            &socket,
            &["daemon", "--check", "--config", file.to_str().unwrap()],
        );
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let dist = "../../machine/daemon/dist/daemon.toml";
    let (code, output_text) = check(&std::fs::read_to_string(dist).unwrap());
    assert_eq!(code, Some(0), "{output_text}");
    assert!(output_text.contains("valid"), "{output_text}");
    let (code, output_text) = check("[[assign]]\nunit = \"redis.service\"\nlevel = 8\n");
    let first = std::fs::read_to_string("/proc/1/comm").unwrap();
    let has_systemd = Path::new("/run/systemd/system").is_dir() || first == "systemd\n";
    assert_eq!(code, Some(0), "{output_text}");
    assert_eq!(
        output_text.contains("systemd does not run here"),
        !has_systemd,
        "{output_text}"
    );
    // The check lists the processes that each rule currently matches. A process counts only for
    // the first rule that matches it.
    let name = format!("upc-{}", std::process::id());
    let program = socket.with_file_name(&name);
    // A separate process makes the copy. A child that another test forks from this process could
    // hold the file open for writing, and then the copy could not be executed.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
    assert!(copied.unwrap().success());
    let mut sleeper = Command::new(&program).arg("60").spawn().unwrap();
    let comm = format!("/proc/{}/comm", sleeper.id());
    while std::fs::read_to_string(&comm).unwrap().trim() != name {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rule = |level: u8| format!("[[assign]]\ncomm = \"{name}\"\nlevel = {level}\n");
    let (code, output_text) = check(&(rule(8) + &rule(9)));
    assert_eq!(code, Some(0), "{output_text}");
    for line in [
        format!("comm = \"{name}\", level = 8: 1 running process matches\n"),
        format!("\n  {} {name} (user ", sleeper.id()),
        format!("comm = \"{name}\", level = 9: no running process matches\n"),
    ] {
        assert!(output_text.contains(&line), "{line} in {output_text}");
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let (code, output_text) = check("[[assign]]\nunit = \"redis\"\nlevel = 8\n");
    assert_eq!(code, Some(1), "{output_text}");
    assert!(output_text.contains("redis.service"), "{output_text}");
    assert!(!socket.exists());
}
