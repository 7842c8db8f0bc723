//! Runs `upshift top` as a user does: its output, its errors, and its treatment of malicious
//! processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift");

/// A directory owned by this test, in place of `$XDG_RUNTIME_DIR`.
struct TestDir(PathBuf);

impl TestDir {
    fn new(name: &str) -> TestDir {
        let dir = std::env::temp_dir().join(format!("upshift-top-{name}-{}", std::process::id()));
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(dir.join("upshift")).unwrap();
        TestDir(dir)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(args)
            .stdin(Stdio::null())
            .env("XDG_RUNTIME_DIR", &self.0)
            .env("UPSHIFT_DAEMON_SOCKET", self.0.join("no-daemon"))
            .env_remove("UPSHIFT_OBSERVE");
        command
    }

    fn top(&self, args: &[&str]) -> Output {
        self.command(&[&["top"], args].concat()).output().unwrap()
    }

    fn error(&self, args: &[&str]) -> String {
        let output = self.top(args);
        assert!(!output.status.success());
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(dir: &TestDir, flags: &[&str], variable: &str) -> Server {
        let args = ["plaintext-server", "--listen", "127.0.0.1:0"];
        let mut child = dir
            .command(&[&args, flags].concat())
            .env("UPSHIFT_OBSERVE", variable)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().into();
        Server { child, address }
    }

    fn request(&self) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        assert!(!reply.is_empty());
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn json_has_the_documented_names() {
    let dir = TestDir::new("json");
    let server = Server::start(&dir, &["--observe"], "0");
    server.request();
    let output = dir.top(&["--once", "--json", "--interval", "50ms"]);
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["pid"].to_string(), server.pid());
    assert_eq!(json["name"], "plaintext-server");
    assert!(
        json["command"]
            .as_str()
            .unwrap()
            .starts_with("upshift plaintext-server")
    );
    for pointer in [
        "/version",
        "/uptime_ns",
        "/interval_ns",
        "/coroutines/live",
        "/coroutines/spawned_per_s",
        "/occupied",
        "/levels/0/level",
        "/levels/0/polls_per_s",
        "/levels/0/cpu",
        "/levels/0/starve",
        "/levels/0/wait_p99_ns",
        "/vcpus/0/busy",
        "/vcpus/0/parked",
        "/vcpus/0/enters_per_s",
        "/vcpus/0/in_flight",
        "/vcpus/0/overflows",
        "/preemption/suspensions_per_s",
        "/stall_limit_ns",
        "/stalls",
        "/longest_polls",
        "/metrics/levels/0/wait",
        "/metrics/vcpus/0/ring/completed",
    ] {
        assert!(json.pointer(pointer).is_some(), "{pointer} in {json}");
    }
    assert!(json["coroutines"]["live"].as_u64().unwrap() >= 2);
    let interval = json["interval_ns"].as_u64().unwrap();
    // The first answer may have taken longer than the second.
    assert!(interval > 0, "{interval}");
}

#[test]
fn text_names_levels_vcpus_and_places() {
    let dir = TestDir::new("text");
    // The environment variable has the same effect as the flag.
    let server = Server::start(&dir, &[], "1");
    let output = dir.top(&[&*server.pid(), "--once", "--interval", "50ms"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "plaintext-server",
        "coroutines:",
        "vCPU",
        "wait p99",
        "Longest polls",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn processes_that_cannot_be_viewed_are_reported_with_a_remedy() {
    let dir = TestDir::new("errors");
    let error = dir.error(&["--once"]);
    assert!(error.contains("UPSHIFT_OBSERVE=1"), "{error}");
    let error = dir.error(&["--once", "4194305"]);
    assert!(error.contains("there is no process 4194305"), "{error}");
    let own_pid = std::process::id().to_string();
    let error = dir.error(&["--once", &own_pid]);
    assert!(error.contains("offers no view"), "{error}");
    let error = dir.error(&[]);
    assert!(error.contains("--once"), "{error}");
    let error = dir.error(&["--once", "--machine"]);
    assert!(error.contains("daemon"), "{error}");
    assert!(dir.error(&["--json"]).contains("--once"));
    let server = Server::start(&dir, &[], "0");
    let error = dir.error(&["--once", &server.pid()]);
    assert!(error.contains("offers no view"), "{error}");
}

#[test]
fn several_processes_are_listed_and_dead_processes_are_skipped() {
    let dir = TestDir::new("several");
    drop(UnixListener::bind(dir.0.join("upshift/4194305.sock")).unwrap());
    let error = dir.error(&["--once"]);
    assert!(error.contains("no process of yours"), "{error}");
    let error = dir.error(&["--once", "4194305"]);
    assert!(error.contains("there is no process 4194305"), "{error}");
    let first = Server::start(&dir, &["--observe"], "0");
    let second = Server::start(&dir, &["--observe"], "0");
    let error = dir.error(&["--once"]);
    assert!(
        error.contains(&first.pid()) && error.contains(&second.pid()),
        "{error}"
    );
}

/// Root inspects another user's process, and is not deceived by sockets that other users put into
/// their directories.
#[test]
fn root_observes_the_process_of_another_user() {
    use std::os::unix::process::CommandExt;
    /// User id that no other test uses.
    const USER: u32 = 61_234;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, which starts a program as another user");
        return;
    }
    let dir = TestDir::new("root");
    let user_dir = PathBuf::from(format!("/tmp/upshift-{USER}"));
    let _ = std::fs::remove_dir_all(&user_dir);
    // The user may be unable to reach this program by its path.
    let program = std::fs::File::open(PROGRAM).unwrap();
    let mut child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty()).unwrap();
    let mut child = child
        .args(["plaintext-server", "--listen", "127.0.0.1:0", "--observe"])
        .env_remove("XDG_RUNTIME_DIR")
        .uid(USER)
        .gid(USER)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    // Another user's socket carries the pid of a process that belongs to root.
    let forged_path = user_dir.join(format!("{}.sock", std::process::id()));
    let _forger = UnixListener::bind(&forged_path).unwrap();
    let server = Server {
        address: line,
        child,
    };
    let named = dir.top(&[&server.pid(), "--once", "--json"]);
    let forged_error = dir.error(&[&std::process::id().to_string(), "--once"]);
    drop(server);
    std::fs::remove_dir_all(&user_dir).unwrap();
    assert!(named.status.success(), "{named:?}");
    assert!(String::from_utf8_lossy(&named.stdout).contains("plaintext-server"));
    assert!(forged_error.contains("offers no view"), "{forged_error}");
}

#[test]
fn a_directory_that_others_may_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TestDir::new("open");
    let sockets = dir.0.join("upshift");
    std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = dir.error(&["--once"]);
    assert!(
        error.contains("not a directory that only this user may write"),
        "{error}"
    );
    // The server reports the error, too, and serves.
    Server::start(&dir, &["--observe"], "0").request();
}

/// Answers one request with `answer`, as a malicious process would.
fn impostor(path: &Path, answer: &'static [u8]) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        // The first connection is that of the view.
        let (stream, _) = listener.accept().unwrap();
        let mut request = String::new();
        let _ = BufReader::new(&stream).read_line(&mut request);
        // The client may disconnect before the end.
        let _ = (&stream).write_all(answer);
    })
}

#[test]
fn invalid_answers_are_errors() {
    let own_pid = std::process::id().to_string();
    for (name, answer, message) in [
        ("noise", &b"\xff\xfe not json\n"[..], "cannot look at"),
        ("words", b"hello\n", "something else than JSON"),
        ("other", b"{\"protocol\":99}\n", "speaks protocol 99"),
        ("half", b"{\"protocol\":1,\"pid\":1}\n", "does not know"),
        ("refusal", b"{\"error\":\"go away\"}\n", "refuses: go away"),
        ("silence", b"", "has ended"),
    ] {
        let dir = TestDir::new(name);
        let path = dir.0.join(format!("upshift/{own_pid}.sock"));
        let thread = impostor(&path, answer);
        let error = dir.error(&[&*own_pid, "--once", "--interval", "50ms"]);
        assert!(error.contains(message), "{name}: {error}");
        thread.join().unwrap();
    }
}

/// Keeps a server busy until it is dropped.
struct Busy {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn start(server: &Server) -> Busy {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (stopped, address) = (stop.clone(), server.address.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                let mut stream = TcpStream::connect(&address).unwrap();
                let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
                if stream.write_all(request).is_ok() {
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            }
        });
        Busy {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn a_running_process_is_recorded_in_both_formats() {
    let dir = TestDir::new("record");
    let server = Server::start(&dir, &["--observe"], "0");
    let busy = Busy::start(&server);
    let file = |name: &str| dir.0.join(name).to_str().unwrap().to_owned();
    let json = file("trace.json");
    let output = dir.top(&[&server.pid(), "--record", &json, "--interval", "300ms"]);
    assert!(output.status.success(), "{output:?}");
    let output_text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output_text.starts_with(&json) && output_text.contains(" events in "),
        "{output_text}"
    );
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let entries = trace["traceEvents"].as_array().unwrap();
    for (phase, name) in [
        ("B", ".rs:"),
        ("i", "spawn"),
        ("i", "I/O"),
        ("s", "wake"),
        ("f", "wake"),
        ("M", "thread_name"),
    ] {
        let is_there = |entry: &&serde_json::Value| {
            entry["ph"] == phase && entry["name"].as_str().unwrap().contains(name)
        };
        assert!(
            entries.iter().any(|entry| is_there(&entry)),
            "{phase} {name}"
        );
    }
    let count = |phase: &str| entries.iter().filter(|entry| entry["ph"] == phase).count();
    assert_eq!(count("B"), count("E"));
    let svg = file("trace.svg");
    let output = dir.top(&["--record", &svg, "--interval", "100ms"]);
    assert!(output.status.success(), "{output:?}");
    let svg = std::fs::read_to_string(&svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("vCPU 0") && svg.contains(".rs:"));
    drop(busy);
    let error = dir.error(&[&server.pid(), "--record", &file("trace.txt")]);
    assert!(error.contains(".json") && error.contains(".svg"), "{error}");
    let error = dir.error(&[&server.pid(), "--record", "/nowhere/trace.svg"]);
    assert!(error.contains("cannot write /nowhere/trace.svg"), "{error}");
}

#[test]
fn sockets_of_processes_that_have_ended_are_removed() {
    let dir = TestDir::new("ended");
    let socket = |name: &str| dir.0.join("upshift").join(name);
    // The numbers are above the largest process id; the listeners could be in another pid
    // namespace.
    let (ended, other) = (socket("1073741824.sock"), socket("1073741825-2.sock"));
    drop(UnixListener::bind(&ended).unwrap());
    let listener = UnixListener::bind(&other).unwrap();
    let _ = dir.error(&["1073741824", "--once"]);
    assert!(!ended.exists() && other.exists());
    drop(listener);
    let _ = dir.error(&["1073741824", "--once"]);
    assert!(!other.exists());
}
