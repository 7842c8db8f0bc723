//! Helpers of the tests: a server that runs on a thread, a temporary folder for its files, and
//! clients that send raw bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use upshift_serve::{Config, Control, Server};

/// A temporary folder, which is removed when this value is dropped.
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

/// A server that runs on a thread of this process. Dropping it drains the server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) control: Control,
    pub(crate) handle: upshift::Handle,
    thread: Option<JoinHandle<usize>>,
}

impl TestServer {
    /// Starts a server of the files below `root`.
    pub(crate) fn files(root: &Path) -> TestServer {
        TestServer::with_config(root, |_| {})
    }

    /// Starts a server of the files below `root`. `change` adapts the configuration.
    pub(crate) fn with_config(root: &Path, change: impl FnOnce(&mut Config)) -> TestServer {
        TestServer::start(root, change, |server| server)
    }

    /// Starts a server. `change` adapts the configuration, and `extend` the bound server.
    pub(crate) fn start(
        root: &Path,
        change: impl FnOnce(&mut Config),
        extend: impl FnOnce(Server) -> Server + Send + 'static,
    ) -> TestServer {
        let mut config = Config {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()],
            root: root.to_owned(),
            drain_timeout: Duration::from_secs(20),
            ..Config::default()
        };
        // A slow machine must not cause refusals, unless `change` sets a shorter bound.
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
                let server = extend(Server::bind(config).unwrap());
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

    /// Starts a server that answers with the service `app` and serves no files.
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

    pub(crate) fn connect_and_send(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(bytes.as_ref()).unwrap();
        stream
    }

    /// Sends a request head with `connection: close`, and returns all bytes that the server sends.
    pub(crate) fn response_to(&self, head: &str) -> String {
        self.exchange(format!("{head}connection: close\r\n\r\n"))
    }

    /// Sends `bytes` on a new connection, and returns all bytes that the server sends before it
    /// closes the connection or sends nothing for 10 s.
    pub(crate) fn exchange(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        // The server may have closed before all bytes were sent.
        let _ = stream.write_all(bytes.as_ref());
        String::from_utf8_lossy(&read_to_end(&mut stream)).into_owned()
    }

    /// Sends a GET on a new connection. `fields` are further header lines.
    pub(crate) fn get(&self, path: &str, fields: &str) -> Answer {
        self.ask("GET", path, fields)
    }

    /// Sends a request without a body on a new connection. `fields` are further header lines.
    pub(crate) fn ask(&self, method: &str, path: &str, fields: &str) -> Answer {
        let line = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
        let mut stream = self.connect_and_send(format!("{line}connection: close\r\n{fields}\r\n"));
        Answer::parse(read_to_end(&mut stream))
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.get("/healthz", "").status == 200
    }

    pub(crate) fn wait_until_idle(&self) {
        wait_until("the server has no connection", || {
            self.control.connections() == 0
        });
    }

    pub(crate) fn wait_for_requests(&self, count: usize) {
        let has_count = || self.control.requests().len() == count;
        wait_until(&format!("{count} requests are in progress"), has_count);
    }

    /// Drains the server, and returns the number of connections that it closed before their
    /// responses were complete.
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

/// Waits until the condition `event` holds, at most for a minute, since a loaded machine is slow.
pub(crate) fn wait_until(event: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < limit, "not within a minute: {event}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns all bytes that the stream yields before its end, an error or a time-out.
pub(crate) fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
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

/// Reads until `is_complete` accepts the received bytes or the stream ends, and returns them.
pub(crate) fn read_until(stream: &mut TcpStream, is_complete: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 16384];
    while !is_complete(&all)
        && let Ok(count @ 1..) = stream.read(&mut buffer)
    {
        all.extend_from_slice(&buffer[..count]);
    }
    all
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn parse(bytes: Vec<u8>) -> Answer {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.map_or(bytes.len(), |end| end + 4);
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Answer {
            status: status.unwrap_or(0),
            head,
            body: bytes[end..].to_vec(),
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

/// Runs the program `name`. Prints `skipped` and returns `None` if it is not installed.
pub(crate) fn tool(name: &str, args: &[&str]) -> Option<Output> {
    match Command::new(name).args(args).output() {
        Ok(output) => Some(output),
        Err(_) => {
            println!("skipped: {name} is not installed (`cargo xtask setup`)");
            None
        }
    }
}

/// Returns a program's standard output, followed by its standard error.
pub(crate) fn output_text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}
