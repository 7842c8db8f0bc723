//! A server on a thread of its own, a folder for it, and raw clients.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use upshift_serve::{Config, Control, Server};

/// A folder that is removed when dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("upshift-serve-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running server; drained when dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) control: Control,
    pub(crate) handle: upshift::Handle,
    thread: Option<JoinHandle<usize>>,
}

impl TestServer {
    /// Starts a server of the files of `root`, with one vCPU.
    pub(crate) fn files(root: &Path) -> TestServer {
        TestServer::with(root, |_| {})
    }

    pub(crate) fn with(root: &Path, change: impl FnOnce(&mut Config)) -> TestServer {
        TestServer::start(root, change, |server| server)
    }

    pub(crate) fn start(
        root: &Path,
        change: impl FnOnce(&mut Config),
        set: impl FnOnce(Server) -> Server + Send + 'static,
    ) -> TestServer {
        let mut config = Config {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()],
            root: root.to_owned(),
            drain_timeout: Duration::from_secs(20),
            ..Config::default()
        };
        // Refusals on a slow machine are not tested, unless `change` sets a bound.
        config.admission.max_wait = Duration::from_secs(60);
        change(&mut config);
        let (send, receive) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = upshift::Runtime::builder()
                .vcpus(1)
                .main_level(upshift::Level::at::<1>())
                .build()
                .unwrap();
            let handle = runtime.handle();
            runtime.block_on(async move {
                let server = set(Server::bind(config).unwrap());
                let address = server.addresses()[0];
                let started = server.start().unwrap();
                send.send((address, started.control(), handle)).unwrap();
                started.run().await
            })
        });
        let (address, control, handle) = receive.recv().unwrap();
        TestServer {
            address,
            control,
            handle,
            thread: Some(thread),
        }
    }

    /// Starts a server with a service in place of the files of `folder`.
    pub(crate) fn with_service(
        folder: &Folder,
        change: impl FnOnce(&mut Config),
        app: axum::Router,
    ) -> TestServer {
        TestServer::start(&folder.0, change, |server| server.with_service(app))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// Opens a connection and sends these bytes.
    pub(crate) fn connect_and_send(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(bytes.as_ref()).unwrap();
        stream
    }

    /// Returns the answer to a head, after which the connection is closed.
    pub(crate) fn response_to(&self, head: &str) -> String {
        self.talk(format!("{head}connection: close\r\n\r\n"))
    }

    /// Sends these bytes alone, and returns all received bytes until the server closes, or is
    /// silent for so long that no more can be on their way.
    pub(crate) fn talk(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        // The server may have closed before all bytes were sent.
        let _ = stream.write_all(bytes.as_ref());
        String::from_utf8_lossy(&rest(&mut stream)).into_owned()
    }

    /// Sends a GET on a connection of its own, with further header lines.
    pub(crate) fn get(&self, path: &str, more: &str) -> Answer {
        self.ask("GET", path, more)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, more: &str) -> Answer {
        let line = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
        let mut stream = self.connect_and_send(format!("{line}connection: close\r\n{more}\r\n"));
        Answer::parse(rest(&mut stream))
    }

    /// Tells whether the server still serves.
    pub(crate) fn is_healthy(&self) -> bool {
        self.get("/healthz", "").status == 200
    }

    /// Waits until there is no connection.
    pub(crate) fn wait_until_idle(&self) {
        wait_until("there is no connection", || self.control.connections() == 0);
    }

    /// Waits until `count` requests are under way.
    pub(crate) fn wait_for_requests(&self, count: usize) {
        let under_way = || self.control.requests().len() == count;
        wait_until(&format!("{count} requests are under way"), under_way);
    }

    /// Drains the server, and returns the number of connections that were cut off.
    pub(crate) fn end(mut self) -> usize {
        self.control.drain();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.control.drain();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                std::thread::panicking() || ended.is_ok(),
                "the server panicked"
            );
        }
    }
}

/// Waits until the condition holds. The limit is long, since a loaded or stalled machine is slow.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < limit, "not in a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns all received bytes until the end, an error or a time-out.
pub(crate) fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 16384];
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 {
            break;
        }
        all.extend_from_slice(&buffer[..count]);
    }
    let _ = stream.shutdown(Shutdown::Both);
    all
}

/// Returns the received bytes once they are enough, or at the end.
pub(crate) fn read_until(stream: &mut TcpStream, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 16384];
    while !enough(&all)
        && let Ok(count @ 1..) = stream.read(&mut buffer)
    {
        all.extend_from_slice(&buffer[..count]);
    }
    all
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn parse(bytes: Vec<u8>) -> Answer {
        let at = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let at = at.map_or(bytes.len(), |at| at + 4);
        let head = String::from_utf8_lossy(&bytes[..at]).into_owned();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Answer {
            status: status.unwrap_or(0),
            head,
            body: bytes[at..].to_vec(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Runs a tool. If it is not installed, prints that and returns `None`.
pub(crate) fn run_tool(name: &str, args: &[&str]) -> Option<Output> {
    match Command::new(name).args(args).output() {
        Ok(output) => Some(output),
        Err(_) => {
            println!("skipped: {name} is not installed (`cargo xtask setup`)");
            None
        }
    }
}

pub(crate) fn output_text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}
