//! Starts a server as a child process in a folder of its own, and sends requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift");

/// Time limit of each wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A temporary folder, which is removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("upshift-cli-serve-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the command `upshift serve ARGS` in `folder`, isolated from any daemon of the machine.
pub(crate) fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .arg("serve")
        .args(args)
        .current_dir(&folder.0)
        .env("UPSHIFT_DAEMON_SOCKET", folder.0.join("daemon"))
        .stdin(Stdio::null());
    command
}

/// Runs a command that ends by itself and returns its output. A command that does not end is
/// killed.
pub(crate) fn output(folder: &Folder, args: &[&str]) -> Output {
    let mut command = command(folder, args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    child.wait_with_output().unwrap()
}

/// Runs a command that must fail without output; returns its standard error.
pub(crate) fn error(folder: &Folder, args: &[&str]) -> String {
    let output = output(folder, args);
    let stderr_text = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && output.stdout.is_empty(),
        "{stderr_text}"
    );
    stderr_text
}

/// A server, killed when the test ends early. Its standard error is in `FOLDER/stderr`.
pub(crate) struct Server {
    pub(crate) child: Child,
    /// Output so far, which lists the addresses.
    pub(crate) announced: String,
    pub(crate) output: BufReader<std::process::ChildStdout>,
}

impl Server {
    /// Starts a server and waits for its first line. `None` if the server prints no line; the error
    /// is then in `FOLDER/stderr`.
    pub(crate) fn try_start(folder: &Folder, args: &[&str]) -> Option<Server> {
        let errors = std::fs::File::create(folder.0.join("stderr")).unwrap();
        let mut command = command(folder, args);
        Server::launch(command.stderr(errors))
    }

    pub(crate) fn launch(command: &mut Command) -> Option<Server> {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        // If standard error is a pipe, closes it, so that the server's writes to it fail.
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

    /// Starts a server on a free port of the loopback interface.
    pub(crate) fn start(folder: &Folder, args: &[&str]) -> Server {
        let listen = ["--listen", "127.0.0.1:0", "--vcpus", "1"];
        Server::try_start(folder, &[&listen, args].concat())
            .unwrap_or_else(|| panic!("{}", folder.read("stderr")))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let (_, address) = self.announced.trim().split_once("://").unwrap();
        address.parse().unwrap()
    }

    pub(crate) fn send(&self, path: &str, more: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    pub(crate) fn get(&self, path: &str, more: &str) -> String {
        read_all(self.send(path, more))
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let kill = ["-c", "kill -s \"$0\" \"$1\"", name, &pid];
        assert!(Command::new("sh").args(kill).status().unwrap().success());
    }

    /// Waits for the end; returns the status, and the rest of the output.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + TIMEOUT;
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

pub(crate) fn read_all(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn wait_until(event: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{event} does not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the value of a metric without labels.
pub(crate) fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.get("/metrics", "");
    let value = metrics.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        Some(value.parse::<f64>().unwrap() as u64)
    });
    value.unwrap_or_else(|| panic!("{name} in {metrics}"))
}
