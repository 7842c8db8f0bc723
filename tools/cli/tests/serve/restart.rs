//! Restarts a server without losing a request: one server follows another on a socket that stays
//! open.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::{Folder, PROGRAM, Server, TIMEOUT};

const RESTARTS: usize = 20;

/// A folder with a page, and the socket that the servers inherit.
struct Site {
    folder: Folder,
    socket: TcpListener,
}

impl Site {
    fn new() -> Site {
        let folder = Folder::new();
        folder.write("index.html", "here");
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        Site { folder, socket }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    fn start(&self) -> Server {
        // The server gets the socket as descriptor 3, as from a service manager.
        let script = "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<&0 0</dev/null";
        let mut command = Command::new("sh");
        let args = ["-c", script, "sh", PROGRAM, "serve", "--vcpus", "1"];
        let socket = std::os::fd::OwnedFd::from(self.socket.try_clone().unwrap());
        command
            .args(args)
            .args(["--drain-delay", "100ms"])
            // A server without CPU time for seconds rightly refuses requests, but this test must
            // lose none.
            .args(["--max-wait", "60s"])
            .current_dir(&self.folder.0)
            .env("UPSHIFT_DAEMON_SOCKET", self.folder.0.join("daemon"))
            .stdin(socket)
            .stderr(Stdio::null());
        Server::launch(&mut command).expect("the server did not start")
    }

    /// Starts several successors, one after the other. The duration is unbounded, since the machine
    /// may be busy.
    fn restart(&self, mut server: Server) -> Server {
        for _ in 0..RESTARTS {
            let next = self.start();
            server.signal("TERM");
            assert_eq!(server.end().0, Some(0));
            server = next;
        }
        server
    }
}

/// A client that runs until the end of the test.
struct Load(Option<Child>);

impl Load {
    /// Interrupts the client and returns its output.
    fn end(mut self) -> String {
        let mut client = self.0.take().expect("the client is ended once");
        assert!(
            client.try_wait().unwrap().is_none(),
            "the load ended before it was interrupted"
        );
        let interrupt = ["-c", "kill -s INT \"$0\"", &client.id().to_string()];
        assert!(
            Command::new("sh")
                .args(interrupt)
                .status()
                .unwrap()
                .success()
        );
        let exit_output = client.wait_with_output().unwrap();
        String::from_utf8_lossy(&[exit_output.stdout, exit_output.stderr].concat()).into_owned()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(mut client) = self.0.take() {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

#[test]
fn a_restart_loses_no_request_of_http1() {
    let site = Site::new();
    let server = site.start();
    let url = format!("http://{}/index.html", site.address());
    // A slow reply is not lost, but `wrk` counts replies beyond its time-out. `wrk` runs until it
    // is interrupted.
    let mut command = Command::new("wrk");
    command.args(["-t1", "-c8", "-d600s", "--timeout", "60s", &url]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(client) = command.spawn() else {
        println!("skipped: wrk is not installed (`cargo xtask setup`)");
        return;
    };
    let load = Load(Some(client));
    let _last = site.restart(server);
    let output_text = load.end();
    assert!(output_text.contains("Requests/sec"), "{output_text}");
    let failed = ["Socket errors", "Non-2xx"].iter();
    assert_eq!(
        failed.filter(|line| output_text.contains(**line)).count(),
        0,
        "{output_text}"
    );
}

// Types and flags of HTTP/2 frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns type, flags, stream and payload of the next frame.
fn next_frame(stream: &mut TcpStream) -> std::io::Result<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [a, b, c, kind, flags, id @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload)?;
    Ok((kind, flags, u32::from_be_bytes(id), payload))
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// Observations of an HTTP/2 client.
#[derive(Debug, Default)]
struct Observations {
    connections: usize,
    answered: u64,
    /// Requests that GOAWAY declared as not served; they are sent again on the next connection.
    unserved: u64,
}

impl Observations {
    /// Sends eight requests at a time on one connection, until `over` or until the server has
    /// announced its end and answered the accepted requests.
    fn converse(&mut self, address: SocketAddr, over: &AtomicBool) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        self.connections += 1;
        let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let mut out = [&hello[..], &frame(SETTINGS, 0, 0, &[])].concat();
        let mut open = BTreeSet::new();
        let mut next = 1;
        // Last stream that the server serves.
        let mut last = u32::MAX;
        loop {
            while open.len() < 8 && last == u32::MAX && !over.load(Ordering::Relaxed) {
                // GET, http, /index.html; the authority is `a`.
                let head = [0x82, 0x86, 0x85, 0x01, 0x01, b'a'];
                let flags = END_STREAM | END_HEADERS;
                out.extend(frame(HEADERS, flags, next, &head));
                open.insert(next);
                next += 2;
            }
            if open.is_empty() && last == u32::MAX {
                return;
            }
            // An ended server receives nothing; its earlier answers can still be read.
            let _ = stream.write_all(&out);
            out.clear();
            let (kind, flags, id, payload) = match next_frame(&mut stream) {
                Ok(frame) => frame,
                // All accepted requests are answered, so the server may close.
                Err(_) if open.is_empty() => return,
                Err(error) => panic!("{error}, and {open:?} are not answered; last: {last}"),
            };
            match kind {
                SETTINGS if flags & ACK == 0 => out.extend(frame(SETTINGS, ACK, 0, &[])),
                PING if flags & ACK == 0 => out.extend(frame(PING, ACK, 0, &payload)),
                // Status 200.
                HEADERS => assert_eq!((payload[0], open.contains(&id)), (0x88, true)),
                DATA if !payload.is_empty() => {
                    assert_eq!(payload, b"here");
                    let consumed = u32::try_from(payload.len()).unwrap().to_be_bytes();
                    out.extend(frame(WINDOW_UPDATE, 0, 0, &consumed));
                }
                RST_STREAM => panic!("stream {id} was reset: {payload:?}"),
                GOAWAY => {
                    let (last_stream, code) = (number(&payload), number(&payload[4..]));
                    assert_eq!(code, 0, "GOAWAY has an error code");
                    assert!(
                        last_stream <= last,
                        "GOAWAY named {last} before, and now {last_stream}"
                    );
                    // The first GOAWAY has the greatest number. The second one names the last
                    // accepted stream. This is the last requested stream, because the PING between
                    // the two has been answered.
                    assert!(
                        last_stream == u32::MAX >> 1 || last_stream == next - 2,
                        "{last_stream}, {next}"
                    );
                    last = last_stream;
                    self.unserved += open.split_off(&last.saturating_add(1)).len() as u64;
                }
                _ => {}
            }
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                assert!(open.remove(&id), "stream {id} ended twice");
                self.answered += 1;
            }
        }
    }
}

/// Restarts the server under clients of this test, because h2load does not reconnect after GOAWAY.
#[test]
fn a_restart_loses_no_request_of_http2() {
    let site = Site::new();
    let server = site.start();
    let over = AtomicBool::new(false);
    /// Sets the flag on drop.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let client = || {
        let mut seen = Observations::default();
        while !over.load(Ordering::Relaxed) {
            seen.converse(site.address(), &over);
        }
        seen
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
        // Clients end with the test, even if a restart fails.
        let end = End(&over);
        let last = site.restart(server);
        drop(end);
        for client in clients {
            let seen = client.join().unwrap();
            println!("{seen:?}");
            assert!(seen.connections > RESTARTS && seen.answered > 0, "{seen:?}");
        }
        drop(last);
    });
}

/// A slow reader that sends a window update meanwhile loses none of the data that the kernel holds
/// for it.
#[test]
fn a_slow_http2_client_gets_its_whole_answer_when_the_server_ends() {
    const LENGTH: usize = 1 << 20;
    const WINDOW: usize = 65535;
    let folder = Folder::new();
    folder.write("index.html", &"x".repeat(LENGTH));
    let server = Server::start(&folder, &["--drain-timeout", "60s"]);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = [0x82, 0x86, 0x85, 0x01, 0x01, b'a'];
    let hello = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &frame(SETTINGS, 0, 0, &[]),
        &frame(HEADERS, END_STREAM | END_HEADERS, 1, &head),
    ];
    stream.write_all(&hello.concat()).unwrap();
    let mut received = 0;
    let mut goaways = 0;
    let mut read_one = |stream: &mut TcpStream| {
        let (kind, flags, _, payload) = next_frame(stream).expect("the answer is incomplete");
        if kind == PING && flags & ACK == 0 {
            stream.write_all(&frame(PING, ACK, 0, &payload)).unwrap();
        }
        goaways += usize::from(kind == GOAWAY);
        received += if kind == DATA { payload.len() } else { 0 };
        (received, goaways)
    };
    // Reads until the window is used up, and after SIGTERM until the second GOAWAY, which names the
    // last stream.
    while read_one(&mut stream).0 < WINDOW {}
    server.signal("TERM");
    while read_one(&mut stream).1 < 2 {}
    let open = |bytes: u32| {
        let bytes = bytes.to_be_bytes();
        [
            frame(WINDOW_UPDATE, 0, 0, &bytes),
            frame(WINDOW_UPDATE, 0, 1, &bytes),
        ]
        .concat()
    };
    stream.write_all(&open(LENGTH as u32)).unwrap();
    // The server now passes the rest to the kernel, which cannot send it yet. After that, the
    // server has nothing more to do.
    for _ in 0..4 {
        thread::sleep(Duration::from_millis(100));
        let _ = stream.write_all(&open(1));
    }
    while read_one(&mut stream).0 < LENGTH {}
    drop(stream);
    assert_eq!(server.end().0, Some(0));
}
