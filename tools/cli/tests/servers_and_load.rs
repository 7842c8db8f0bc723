//! Runs the test servers and the load generator as a user does: output, signals, error messages.
//! Uses only the loopback interface.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use upshift_load::spin::{FRAME, Request};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift");

fn upshift(args: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A server that is killed when the test ends early.
struct Server {
    child: Child,
    addresses: Vec<SocketAddr>,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        let mut child = Command::new(PROGRAM)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let address_count = args.iter().filter(|a| **a == "--listen").count();
        let addresses = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .take(address_count)
            .map(|line| {
                line.unwrap()
                    .strip_prefix("listening on ")
                    .expect("the line has no address")
                    .parse()
                    .unwrap()
            })
            .collect();
        Server { child, addresses }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("sh")
                .args(["-c", "kill -s \"$0\" \"$1\"", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(kind: &str, address: SocketAddr, more: &[&str]) -> Output {
    let address = address.to_string();
    let mut args = vec!["load", kind, "--connect", &address, "--connections", "4"];
    args.extend(["--warmup", "50ms", "--duration", "200ms"]);
    args.extend(more);
    upshift(&args)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_matrix_server_serves_load_and_ends_with_status_0() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&[
            "matrix-server",
            "--listen",
            "127.0.0.1:0@0",
            "--listen",
            "127.0.0.1:0",
        ]);
        assert_eq!(server.addresses.len(), 2);
        for &address in &server.addresses {
            let pid = server.child.id().to_string();
            let output = load(
                "matrix",
                address,
                &["--size", "5", "--json", "--server-pid", &pid],
            );
            assert!(output.status.success(), "{}", text(&output.stderr));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(report["total"]["requests"].as_u64().unwrap() > 0);
            assert_eq!(report["total"]["errors"], 0);
            assert!(report["server_cpu_us"].is_array());
        }
        // An open connection must not keep the server alive.
        let _idle = TcpStream::connect(server.addresses[0]).unwrap();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_plaintext_server_answers_http_load() {
    let mut server = Server::start(&["plaintext-server", "--listen", "127.0.0.1:0"]);
    let output = load("http", server.addresses[0], &["--pipeline", "4"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(
        table.contains("req/s") && table.contains("p99.9"),
        "{table}"
    );
    assert!(
        table.lines().all(|line| line.chars().count() <= 100),
        "{table}"
    );
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_taken_port_is_named_with_advice() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let output = upshift(&["matrix-server", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(
        message.contains(&address) && message.contains("choose another port"),
        "{message}"
    );
}

#[test]
fn load_without_a_server_fails_with_the_first_error() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let output = load("matrix", free, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("the first:"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn wrong_usage_exits_with_2_and_no_arguments_show_help() {
    assert_eq!(upshift(&["load", "ftp"]).status.code(), Some(2));
    let output = upshift(&[]);
    assert!(
        text(&output.stderr).contains("upshift demo --quick"),
        "{}",
        text(&output.stderr)
    );
}

fn spin_server() -> Server {
    Server::start(&["spin-server", "--listen", "127.0.0.1:0@0"])
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.addresses[0]).unwrap();
    stream.set_nodelay(true).unwrap();
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience).unwrap();
    stream
}

fn spin(service: u64, level: u8, tag: u64) -> [u8; FRAME] {
    Request {
        service,
        level,
        tag,
    }
    .bytes()
}

/// Returns the replies until the server closes; a reset counts as the end.
fn replies(mut stream: TcpStream) -> Vec<[u8; FRAME]> {
    let mut all = Vec::new();
    let mut frame = [0; FRAME];
    while stream.read_exact(&mut frame).is_ok() {
        all.push(frame);
    }
    all
}

#[test]
fn a_spin_server_serves_load_by_class_and_ends_with_status_0() {
    let mut server = spin_server();
    let address = server.addresses[0].to_string();
    let pid = server.child.id().to_string();
    let mut args = vec!["load", "spin", "--connect", &address, "--connections", "4"];
    args.extend(["--rate", "2000", "--long", "1ms", "--long-share", "10%"]);
    args.extend(["--warmup", "50ms", "--duration", "300ms", "--json"]);
    args.extend(["--server-pid", &pid]);
    let output = upshift(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let figure_of = |class: usize, name: &str| report["groups"][class][name].as_f64().unwrap();
    assert_eq!(report["groups"][0]["label"], "short");
    assert_eq!(report["groups"][1]["label"], "long");
    assert_eq!(report["total"]["connections"], 4, "shared by classes");
    assert!(figure_of(0, "requests") > figure_of(1, "requests"));
    assert!(figure_of(1, "requests") > 0.0);
    // The bound is half of the nominal 1 ms, because the duration of a burn varies with the
    // frequency of the CPU.
    assert!(figure_of(1, "p50") >= 500.0, "a long request is too short");
    assert!(
        figure_of(0, "p50") <= figure_of(0, "p90") && figure_of(0, "p90") <= figure_of(0, "p99")
    );
    assert!(report["server_cpu_us"].is_array());
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn spin_replies_come_in_the_order_of_completion() {
    let server = spin_server();
    let mut stream = connect(&server);
    // All requests are present at once, so urgent requests are served first, regardless of arrival.
    let requests = [
        spin(3_000_000, 40, 1),
        spin(1_000, 40, 2),
        spin(1_000, 0, 3),
        spin(1_000, 9, 4),
    ];
    stream.write_all(requests.as_flattened()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let replies = replies(stream);
    let position = |i: usize| replies.iter().position(|r| *r == requests[i]).unwrap();
    assert_eq!(
        replies.len(),
        4,
        "not every request is answered once after the input has ended"
    );
    assert!(position(2) < position(3), "level 0 before level 9");
    assert!(position(3) < position(0), "level 9 before level 40");
}

#[test]
fn a_reply_leaves_before_the_requests_after_it_are_served() {
    const REQUESTS: u64 = 20;
    let server = spin_server();
    let mut stream = connect(&server);
    // The requests are received at level 0, so all of them wait before the first is served.
    let requests: Vec<_> = (0..REQUESTS).map(|tag| spin(5_000_000, 40, tag)).collect();
    let begin = Instant::now();
    stream.write_all(requests.as_flattened()).unwrap();
    let times: Vec<Duration> = requests
        .iter()
        .map(|_| {
            stream.read_exact(&mut [0; FRAME]).unwrap();
            begin.elapsed()
        })
        .collect();
    let (half, all) = (times[times.len() / 2], times[times.len() - 1]);
    // Half of the replies are due after half of the time; the rest of the bound is a margin for
    // other programs.
    assert!(
        half < all.mul_f64(0.85),
        "half came after {half:?} of {all:?}"
    );
}

#[test]
fn many_pipelined_spin_requests_are_all_answered() {
    let server = spin_server();
    let mut stream = connect(&server);
    // More requests than may be in progress, cut at arbitrary positions.
    let requests: Vec<u8> = (0..2000).flat_map(|tag| spin(tag % 3, 0, tag)).collect();
    let mut half = stream.try_clone().unwrap();
    let sent = requests.clone();
    let writer = std::thread::spawn(move || {
        for piece in sent.chunks(1001) {
            half.write_all(piece).unwrap();
        }
    });
    let mut found = vec![0; requests.len()];
    stream.read_exact(&mut found).unwrap();
    writer.join().unwrap();
    let mut tags: Vec<u64> = found
        .as_chunks::<FRAME>()
        .0
        .iter()
        .map(|frame| Request::parse(frame).unwrap().tag)
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..2000).collect::<Vec<u64>>());
}

#[test]
fn malformed_spin_frames_close_their_connection_only() {
    let mut server = spin_server();
    let mut good = connect(&server);
    let level_64 = [&spin(1, 0, 1)[..8], &64u64.to_le_bytes(), &[0; 8]].concat();
    let cut = spin(2, 0, 2)[..23].to_vec();
    for bad in [vec![0xff; FRAME], level_64, cut] {
        let mut stream = connect(&server);
        stream.write_all(&spin(500, 3, 3)).unwrap();
        stream.write_all(&bad).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(replies(stream), [spin(500, 3, 3)]);
    }
    good.write_all(&spin(500, 63, 4)).unwrap();
    let mut reply = [0; FRAME];
    good.read_exact(&mut reply).unwrap();
    assert_eq!(reply, spin(500, 63, 4));
    server.signal("INT");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_client_that_never_reads_holds_back_only_itself() {
    let server = spin_server();
    let mut deaf = connect(&server);
    deaf.set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let many = spin(0, 0, 7).repeat(4096);
    // The socket buffers and the 256 requests in progress hold far less than this.
    let blocked = (0..1000).any(|_| deaf.write_all(&many).is_err());
    assert!(blocked, "the server swallowed 98 MB");
    let mut stream = connect(&server);
    stream.write_all(&spin(500, 0, 8)).unwrap();
    let mut reply = [0; FRAME];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, spin(500, 0, 8));
}

#[test]
fn help_of_the_spin_commands_describes_the_protocol() {
    let help = text(&upshift(&["spin-server", "--help"]).stdout);
    assert!(
        help.contains("24 bytes") && help.contains("Examples"),
        "{help}"
    );
    let help = text(&upshift(&["load", "spin", "--help"]).stdout);
    for word in ["--long-share", "exponential", "Examples"] {
        assert!(help.contains(word), "{word}: {help}");
    }
}

#[test]
fn a_failed_print_is_an_error_and_a_closed_pipe_is_not() {
    for word in ["--help", "--version", "doctor"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = Command::new(PROGRAM);
        let command = command.arg(word).stdin(Stdio::null());
        let output = command.stdout(full.unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{word}");
        assert!(text(&output.stderr).contains("cannot print"), "{word}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{word}");
        assert_eq!(text(&output.stderr), "", "{word}");
    }
}

#[test]
fn load_names_the_limits_if_a_server_closes_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Accepts the four connections of the load, and closes each at once.
    let acceptor = std::thread::spawn(move || (0..4).for_each(|_| drop(listener.accept())));
    let output = load("http", address, &[]);
    acceptor.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr_text = text(&output.stderr);
    assert!(
        stderr_text.contains("before its first reply"),
        "{stderr_text}"
    );
    assert!(
        stderr_text.contains("--connections-per-peer"),
        "{stderr_text}"
    );
}
