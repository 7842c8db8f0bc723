//! The command as a user runs it: servers, load, signals, error messages. Loopback only.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

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
        let wanted = args.iter().filter(|a| **a == "--listen").count();
        let addresses = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .take(wanted)
            .map(|line| {
                line.unwrap()
                    .strip_prefix("listening on ")
                    .expect("the address")
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
        let deadline = Instant::now() + Duration::from_secs(10);
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

fn serves_and_ends_with_status_0(model: &str) {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&[
            "matrix-server",
            "--listen",
            "127.0.0.1:0@0",
            "--listen",
            "127.0.0.1:0",
            "--model",
            model,
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
        // A connection that is open must not keep the server alive.
        let _idle = std::net::TcpStream::connect(server.addresses[0]).unwrap();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{model} server, {signal}");
    }
}

fn answers_http(model: &str) {
    let mut server = Server::start(&[
        "plaintext-server",
        "--listen",
        "127.0.0.1:0",
        "--model",
        model,
    ]);
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
fn thread_matrix_server_serves_load_and_ends_with_status_0() {
    serves_and_ends_with_status_0("thread");
}

#[test]
fn thread_plaintext_server_answers_http_load() {
    answers_http("thread");
}

#[test]
fn coroutine_matrix_server_serves_load_and_ends_with_status_0() {
    serves_and_ends_with_status_0("coroutine");
}

#[test]
fn coroutine_plaintext_server_answers_http_load() {
    answers_http("coroutine");
}

#[test]
fn a_taken_port_is_named_with_advice() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = upshift(&["matrix-server", "--model", "thread", "--listen", &address]);
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

#[test]
fn spawn_test_reports_memory_and_time() {
    let output = upshift(&["spawn-test", "--model", "thread", "--count", "20", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["count"], 20);
    assert!(report["spawn"].as_f64().unwrap() > 0.0);
}
