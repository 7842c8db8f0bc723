//! `upshift serve` as a user runs it: what it prints, its errors, signals, and the flags that change how it runs.
//! What clients get from it is tested in `upshift-serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift");
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder of the test's own, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("upshift-cli-serve-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `upshift serve ARGS` in `folder`, which no daemon of the machine hears of.
fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .arg("serve")
        .args(args)
        .current_dir(&folder.0)
        .env("UPSHIFT_DAEMON_SOCKET", folder.0.join("daemon"))
        .stdin(Stdio::null());
    command
}

/// What a command that ends by itself prints. One that does not is ended.
fn output(folder: &Folder, args: &[&str]) -> Output {
    let mut command = command(folder, args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    child.wait_with_output().unwrap()
}

/// What it says when it fails.
fn error(folder: &Folder, args: &[&str]) -> String {
    let output = output(folder, args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && output.stdout.is_empty(),
        "{said}"
    );
    said
}

/// A server, killed when the test ends early. Its standard error is in `FOLDER/stderr`.
struct Server {
    child: Child,
    /// What it has printed so far: its addresses.
    announced: String,
    output: BufReader<std::process::ChildStdout>,
}

impl Server {
    /// Starts it and waits for its first line; `None`, and the error in `FOLDER/stderr`, if there is none.
    fn try_start(folder: &Folder, args: &[&str]) -> Option<Server> {
        let errors = std::fs::File::create(folder.0.join("stderr")).unwrap();
        let mut command = command(folder, args);
        Server::launch(command.stderr(errors))
    }

    fn launch(command: &mut Command) -> Option<Server> {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        // Who is given a pipe for its errors finds that nobody reads it.
        drop(child.stderr.take());
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut announced = String::new();
        output.read_line(&mut announced).unwrap();
        let server = Server {
            child,
            announced,
            output,
        };
        (!server.announced.is_empty()).then_some(server)
    }

    /// On a free port of the loopback.
    fn start(folder: &Folder, args: &[&str]) -> Server {
        let listen = ["--listen", "127.0.0.1:0", "--vcpus", "1"];
        Server::try_start(folder, &[&listen, args].concat())
            .unwrap_or_else(|| panic!("{}", folder.read("stderr")))
    }

    fn address(&self) -> SocketAddr {
        let (_, address) = self.announced.trim().split_once("://").unwrap();
        address.parse().unwrap()
    }

    fn send(&self, path: &str, more: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    fn get(&self, path: &str, more: &str) -> String {
        all(self.send(path, more))
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let kill = ["-c", "kill -s \"$0\" \"$1\"", name, &pid];
        assert!(Command::new("sh").args(kill).status().unwrap().success());
    }

    /// Waits for its end: its status, and the rest of what it printed.
    fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (status.code(), rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn all(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until `is_so`.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_arguments_it_serves_the_current_folder_and_says_where() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let Some(server) = Server::try_start(&folder, &[]) else {
        // Somebody else has the port: then the error says who.
        let said = folder.read("stderr");
        assert!(said.contains("cannot listen on 127.0.0.1:8080"), "{said}");
        assert!(said.contains("holds the port"), "{said}");
        assert!(said.contains("--listen"), "{said}");
        return;
    };
    let place = folder.0.canonicalize().unwrap();
    let line = format!("serving {} on http://127.0.0.1:8080\n", place.display());
    assert_eq!(server.announced, line);
    let answer = server.get("/page.txt", "");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("a page"), "{answer}");
    server.signal("TERM");
    let (status, rest) = server.end();
    assert_eq!(status, Some(0));
    assert!(rest.starts_with("built in: /healthz /metrics"), "{rest}");
}

#[test]
fn a_port_that_is_taken_is_an_error_that_says_who_holds_it() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = error(&folder, &["--listen", &address, "--vcpus", "1"]);
    for part in [
        &*address,
        &format!("process {}", std::process::id()),
        "choose another port with --listen",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn help_shows_priorities_and_examples() {
    let folder = Folder::new();
    let output = output(&folder, &["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for part in [
        "[default: 127.0.0.1:8080]",
        "--priority",
        "--preempt",
        "--board",
        "the first matching --priority rule",
        "upshift serve site --listen 0.0.0.0:80",
        "SIGHUP",
    ] {
        assert!(help.contains(part), "{part} in {help}");
    }
}

#[test]
fn mistakes_say_what_to_do() {
    let folder = Folder::new();
    let misspelt = folder.write("misspelt.toml", "lissen = []\n");
    let level = folder.write("level.toml", "[[priority]]\npath = \"/a\"\nlevel = 64\n");
    let listen = ["--listen", "127.0.0.1:0"];
    for (args, parts) in [
        (
            &["--config", "none.toml"][..],
            &["none.toml", "No such file"][..],
        ),
        (
            &["--config", &misspelt],
            &["misspelt.toml", "unknown field `lissen`", "line 1"],
        ),
        (&["--config", &level], &["level.toml", "not a level"]),
        (&["no-folder"], &["no-folder", "No such file"]),
        (&["--priority", "/a"], &["CONDITIONS=LEVEL"]),
        (&["--endpoints", "status"], &["use healthz, metrics"]),
        (&["--tls-cert", "cert.pem"], &["--tls-key"]),
        (
            &["--tls-cert", "cert.pem", "--tls-key", "key.pem"],
            &["cert.pem", "No such file"],
        ),
        (&["--ask", "status"], &["--control"]),
        (
            &["--control", "nobody", "--ask", "status"],
            &["no server answers on nobody"],
        ),
        (&["--board", "required"], &["upshift daemon"]),
    ] {
        let said = error(&folder, &[&listen, args].concat());
        for part in parts {
            assert!(said.contains(part), "{args:?}: {part} in {said}");
        }
    }
}

/// The levels of the lines that are complete.
fn logged(folder: &Folder) -> Vec<(String, u64)> {
    let log = folder.read("access.jsonl");
    log.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).expect(line);
            assert!(record["took_ms"].as_f64().unwrap() >= 0.0);
            let path = record["path"].as_str().unwrap().to_owned();
            (path, record["level"].as_u64().unwrap())
        })
        .collect()
}

#[test]
fn sighup_reads_the_file_again_and_keeps_the_old_settings_if_it_is_wrong() {
    let folder = Folder::new();
    let rule = |level: u8| {
        let rule = format!("[[priority]]\npath = \"/a\"\nlevel = {level}\n");
        folder.write("serve.toml", &rule)
    };
    let config = rule(8);
    let server = Server::start(
        &folder,
        &["--config", &config, "--access-log", "access.jsonl"],
    );
    let mut requests = 0;
    let mut level_of_a = || {
        server.get("/a", "priority: u=1\r\n");
        requests += 1;
        wait_until("a line of the log", || logged(&folder).len() == requests);
        logged(&folder)[requests - 1].clone()
    };
    assert_eq!(level_of_a(), ("/a".into(), 8));
    rule(9);
    server.signal("HUP");
    wait_until("the reload", || {
        folder.read("stderr").contains("reloaded; 0")
    });
    assert_eq!(level_of_a(), ("/a".into(), 9));
    rule(64);
    server.signal("HUP");
    wait_until("the refusal", || {
        folder
            .read("stderr")
            .contains("not reloaded, the old settings stay")
    });
    assert_eq!(level_of_a(), ("/a".into(), 9));
}

#[test]
fn the_access_log_may_be_the_standard_output() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--access-log", "-", "--endpoints", "healthz"]);
    server.get("/healthz?a=b", "");
    server.signal("TERM");
    let (status, rest) = server.end();
    assert_eq!(status, Some(0));
    let line = rest
        .lines()
        .find(|line| line.starts_with('{'))
        .expect(&rest);
    let record: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(record["path"], "/healthz");
    assert_eq!(record["query"], "a=b");
    assert_eq!(record["status"], 200);
}

#[test]
fn sigterm_answers_what_is_under_way_refuses_what_is_new_and_ends_with_0() {
    let folder = Folder::new();
    let patient = ["--drain-timeout", "60s", "--max-wait", "60s"];
    let server = Server::start(&folder, &patient);
    let address = server.address();
    // Connected, and in the middle of a head.
    let begun = TcpStream::connect(address).unwrap();
    begun.set_read_timeout(Some(PATIENCE)).unwrap();
    let slow: Vec<_> = (0..4).map(|_| server.send("/matrix?n=400", "")).collect();
    // All have begun: one that has not been accepted is not under way.
    wait_until("requests under way", || {
        let metrics = server.get("/metrics", "");
        let count = |name: &str| {
            let line = format!("upshift_http_{name}{{level=\"28\"}} ");
            let mut counts = metrics.lines().filter_map(|it| it.strip_prefix(&line));
            counts.next().map_or(0, |count| count.parse().unwrap())
        };
        count("in_flight") + count("request_duration_seconds_count") >= 4_u64
    });
    server.signal("TERM");
    wait_until("the announcement", || {
        folder.read("stderr").contains("draining: ")
    });
    wait_until("a refusal", || TcpStream::connect(address).is_err());
    for stream in slow {
        let answer = all(stream);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\"n\":400"), "{answer}");
    }
    let _ = begun.shutdown(Shutdown::Write);
    let (status, _) = server.end();
    assert_eq!(status, Some(0));
    let said = folder.read("stderr");
    assert!(
        said.contains("requests answered, 0 connections cut off"),
        "{said}"
    );
}

#[test]
fn a_standard_error_that_nobody_reads_ends_nothing() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\"", PROGRAM, "serve"])
        .args(["--listen", "127.0.0.1:0", "--vcpus", "1"])
        .current_dir(&folder.0)
        .stderr(Stdio::piped());
    let server = Server::launch(&mut limited).unwrap();
    let gets = |path: &str, part: &str| {
        let answer = server.get(path, "");
        assert!(answer.contains(part), "{answer}");
    };
    gets("/page.txt", "a page");
    // More than it has descriptors for: it says that it cannot accept, and cannot say it.
    let many: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(server.address()).unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    drop(many);
    gets("/page.txt", "a page");
    // Nor can it say that it reads its settings again, and that it ends.
    server.signal("HUP");
    gets("/page.txt", "a page");
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn sighup_opens_the_log_anew_and_says_what_takes_a_restart() {
    let folder = Folder::new();
    let config = folder.write("serve.toml", "receive-level = 3\n");
    let args = ["--config", &config, "--access-log", "access.jsonl"];
    let server = Server::start(&folder, &args);
    server.get("/a", "");
    wait_until("a line of the log", || logged(&folder).len() == 1);
    std::fs::rename(folder.0.join("access.jsonl"), folder.0.join("old.jsonl")).unwrap();
    folder.write("serve.toml", "receive-level = 1\nroot = \"/\"\n");
    server.signal("HUP");
    let said = "a restart makes it so: root, receive-level";
    wait_until("the reload", || folder.read("stderr").contains(said));
    server.get("/b", "");
    wait_until("a line of the new log", || logged(&folder).len() == 1);
    assert_eq!(logged(&folder)[0].0, "/b");
    assert_eq!(folder.read("old.jsonl").lines().count(), 1);
}

#[test]
fn a_log_on_a_full_disk_ends_nothing_and_is_said() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--access-log", "/dev/full"]);
    wait_until("the complaint", || {
        server.get("/plaintext", "");
        folder.read("stderr").contains("access log: ")
    });
    assert!(server.get("/plaintext", "").contains("Hello"));
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_second_sigterm_ends_it_at_once() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    // A head that is never finished keeps the drain waiting.
    let mut begun = TcpStream::connect(server.address()).unwrap();
    begun.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    wait_until("the connection", || {
        server
            .get("/metrics", "")
            .contains("upshift_connections_open 2")
    });
    server.signal("TERM");
    wait_until("the announcement", || {
        folder.read("stderr").contains("draining: ")
    });
    server.signal("TERM");
    assert_eq!(server.end().0, Some(1));
}

#[test]
fn with_board_auto_it_serves_without_a_daemon_and_joins_one_that_comes() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--board", "auto"]);
    assert!(server.get("/healthz", "").contains("ok"));
    let daemon = Command::new(PROGRAM)
        .args(["daemon", "--cooperative", "--socket"])
        .arg(folder.0.join("daemon"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let daemon = Daemon(daemon);
    wait_until("the registration", || {
        registered(&folder).contains(&server.child.id())
    });
    assert!(server.get("/healthz", "").contains("ok"));
    drop(daemon);
    assert!(server.get("/healthz", "").contains("ok"));
}

/// Killed when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes that the daemon of this folder knows.
fn registered(folder: &Folder) -> Vec<u32> {
    let output = Command::new(PROGRAM)
        .args(["daemon", "--status"])
        .env("UPSHIFT_DAEMON_SOCKET", folder.0.join("daemon"))
        .output()
        .unwrap();
    let Ok(census) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else {
        return Vec::new();
    };
    let processes = census["processes"].as_array().unwrap().iter();
    processes
        .map(|process| process["pid"].as_u64().unwrap() as u32)
        .collect()
}

/// The value of a metric that has no labels.
fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.get("/metrics", "");
    let value = metrics.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        Some(value.parse::<f64>().unwrap() as u64)
    });
    value.unwrap_or_else(|| panic!("{name} in {metrics}"))
}

#[test]
fn with_preemption_a_long_request_is_suspended_for_short_ones() {
    let folder = Folder::new();
    let args = ["--pin", "0", "--preempt", "on", "--quantum", "100us"];
    let server = Server::start(&folder, &args);
    let said = folder.read("stderr");
    if said.contains("long polls are not interrupted") {
        eprintln!("skipped: {}", said.trim());
        return;
    }
    let suspensions = || metric(&server, "upshift_preemption_suspensions_total");
    let deadline = Instant::now() + PATIENCE;
    while suspensions() == 0 {
        assert!(Instant::now() < deadline, "nothing is suspended");
        let long: Vec<_> = (0..2)
            .map(|_| server.send("/matrix?n=512", "priority: u=6\r\n"))
            .collect();
        for _ in 0..20 {
            let short = server.get("/matrix?n=2", "priority: u=0\r\n");
            assert!(short.starts_with("HTTP/1.1 200"), "{short}");
        }
        for stream in long {
            let answer = all(stream);
            assert!(answer.contains("\"n\":512"), "{answer}");
        }
    }
}

/// Resident memory of the server, in MiB.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() / 1024
}

#[test]
fn overload_does_not_grow_memory_and_leaves_health_checks_alone() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--max-wait", "20ms"]);
    let address = server.address().to_string();
    // Far more than a vCPU can compute.
    let overload = || {
        let load = [
            "load",
            "http",
            "--connect",
            &address,
            "--path",
            "/matrix?n=64",
        ];
        let pace = ["--connections", "300", "--rate", "20000"];
        let time = ["--warmup", "100ms", "--duration", "500ms"];
        let mut client = Command::new(PROGRAM);
        let client = client.args(load).args(pace).args(time);
        client.stdout(Stdio::null()).stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(100));
            assert!(server.get("/healthz", "").ends_with("ok\n"));
        }
        client.wait().unwrap();
    };
    overload();
    let first = resident(&server);
    for _ in 0..3 {
        overload();
    }
    let last = resident(&server);
    // Requests under way have 64 KiB each, and a connection has one.
    assert!(last < first + 32, "{first} MiB, then {last} MiB");
}

#[test]
fn readers_that_read_nothing_cost_little_and_give_it_back() {
    const READERS: u64 = 400;
    let folder = Folder::new();
    let big = std::fs::File::create(folder.0.join("big.bin")).unwrap();
    big.set_len(256 << 20).unwrap();
    let server = Server::start(&folder, &[]);
    server.get("/healthz", "");
    let before = resident(&server);
    let readers: Vec<_> = (0..READERS).map(|_| server.send("/big.bin", "")).collect();
    for reader in &readers {
        // It has begun.
        assert_eq!(reader.peek(&mut [0]).unwrap(), 1);
    }
    // A piece of 64 KiB, and buffers for the head; 400 KiB where hyper may buffer as it likes.
    let mut most = 0;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(50));
        most = resident(&server).max(most);
    }
    let each = (most - before) * 1024 / READERS;
    assert!(each < 200, "{each} KiB for each reader");
    drop(readers);
    wait_until("the memory", || {
        resident(&server) < before + (most - before) / 3
    });
}

#[test]
fn commands_reach_the_server_that_runs() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--control", "control"]);
    let ask = |command| {
        let output = output(&folder, &["--control", "control", "--ask", command]);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(ask("status").contains("\"under_way\":0"));
    let mistake = ask("dance");
    assert!(
        mistake.starts_with("error: ") && mistake.contains("`help` lists them"),
        "{mistake}"
    );
    assert_eq!(ask("drain"), "ok: draining\n");
    assert_eq!(server.end().0, Some(0));
    assert!(!Path::new(&folder.0.join("control")).exists());
}

/// No request fails, while one server follows another on a socket that stays open.
fn restarts(count: usize, tool: &str, load: &[&str], failures: impl Fn(&str) -> Option<u64>) {
    let folder = Folder::new();
    folder.write("index.html", "here");
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/index.html", socket.local_addr().unwrap());
    let start = || {
        // As a service manager does: descriptor 3.
        let script = "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<&0 0</dev/null";
        let mut command = Command::new("sh");
        let args = ["-c", script, "sh", PROGRAM, "serve", "--vcpus", "1"];
        let socket = std::os::fd::OwnedFd::from(socket.try_clone().unwrap());
        command
            .args(args)
            // On a machine that is busy with other things, too, none is refused.
            .args(["--drain-delay", "100ms", "--max-wait", "60s"])
            .current_dir(&folder.0)
            .env("UPSHIFT_DAEMON_SOCKET", folder.0.join("daemon"))
            .stdin(socket)
            .stderr(Stdio::null());
        Server::launch(&mut command).expect("a server")
    };
    let mut server = start();
    let mut command = Command::new(tool);
    command.args(load).arg(&url);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut client) = command.spawn() else {
        println!("skipped: {tool} is not installed (`cargo xtask setup`)");
        return;
    };
    for _ in 0..count {
        let next = start();
        server.signal("TERM");
        assert_eq!(server.end().0, Some(0));
        server = next;
    }
    assert!(
        client.try_wait().unwrap().is_none(),
        "the load ended before"
    );
    let said = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert_eq!(failures(&said), Some(0), "{said}");
}

#[test]
fn a_restart_loses_no_request_of_http1() {
    let load = ["-t1", "-c8", "-d12s"];
    restarts(20, "wrk", &load, |said| {
        said.contains("Requests/sec").then(|| {
            let failed = ["Socket errors", "Non-2xx"].iter();
            failed.filter(|line| said.contains(**line)).count() as u64
        })
    });
}
