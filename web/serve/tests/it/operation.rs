//! Tests of how a server is operated: draining, reloading, commands, logs, metrics, built-in
//! endpoints, and services that upgrade connections.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use upshift::sync::Notify;
use upshift_serve::{Config, ask};

use crate::harness::{Answer, Folder, TestServer, read_to_end, read_until};

fn slow_service() -> axum::Router {
    use axum::routing::get;
    let slow = || async {
        upshift::time::sleep(Duration::from_millis(500)).await;
        "slow"
    };
    axum::Router::new()
        .route("/slow", get(slow))
        .route("/endless", get(std::future::pending::<()>))
}

#[test]
fn draining_finishes_requests_and_cuts_off_those_that_take_too_long() {
    let folder = Folder::new();
    let server = TestServer::with_service(&folder, |_| {}, slow_service());
    let mut stream = server.connect_and_send("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n");
    let idle = server.connect();
    server.wait_for_requests(1);
    let address = server.address;
    assert_eq!(server.end(), 0);
    let answer = Answer::parse(read_to_end(&mut stream));
    assert_eq!((answer.status, answer.text().as_str()), (200, "slow"));
    assert!(std::net::TcpStream::connect(address).is_err());
    drop(idle);

    let short_drain = |config: &mut Config| config.drain_timeout = Duration::from_millis(50);
    let server = TestServer::with_service(&folder, short_drain, slow_service());
    let mut stream = server.connect_and_send("GET /endless HTTP/1.1\r\nhost: x\r\n\r\n");
    server.wait_for_requests(1);
    assert_eq!(server.end(), 1);
    assert!(read_to_end(&mut stream).is_empty());
}

#[test]
fn a_reload_changes_rules_and_an_invalid_file_changes_nothing() {
    let folder = Folder::new();
    let next = Arc::new(Mutex::new(Err("broken file".to_owned())));
    let read = next.clone();
    let level = || async { upshift::current_level().unwrap().to_string() };
    let app = axum::Router::new().fallback(level);
    let server = TestServer::start(
        &folder.0,
        |_| {},
        |server| {
            server
                .with_service(app)
                .with_reload(move || read.lock().unwrap().clone())
        },
    );
    assert_eq!(server.control.reload(), Err("broken file".to_owned()));
    assert_eq!(server.get("/x", "").text(), "28");
    *next.lock().unwrap() = Ok(Config {
        priority: vec!["/x=11".parse().unwrap()],
        ..Config::default()
    });
    let reloaded = server.control.reload().unwrap();
    assert_eq!(reloaded.moved, 0);
    assert_eq!(reloaded.restart, ["listen"]);
    assert_eq!(server.get("/x", "").text(), "11");
}

#[test]
fn commands_are_accepted_on_a_socket_that_only_its_owner_may_use() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let socket = folder.0.join("control");
    let path = socket.clone();
    let end = Arc::new(Notify::new());
    let ended = end.clone();
    let until_ended = move || {
        let ended = ended.clone();
        async move { ended.notified().await }
    };
    let app = axum::Router::new().route("/slow", axum::routing::get(until_ended));
    let server = TestServer::with_service(&folder, |config| config.control = Some(path), app);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let _stream = server.connect_and_send("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n");
    server.wait_for_requests(1);
    let list = ask(&socket, "list").unwrap();
    assert!(
        list.contains("\"path\":\"/slow\"") && list.contains("\"level\":28"),
        "{list}"
    );
    let number = list.split("\"number\":").nth(1).unwrap();
    let number: String = number.chars().take_while(char::is_ascii_digit).collect();
    let reply = ask(&socket, &format!("reprio {number} 3")).unwrap();
    assert_eq!(reply, format!("ok: request {number} is at level 3\n"));
    assert!(ask(&socket, "list").unwrap().contains("\"level\":3,"));
    assert!(
        ask(&socket, "priority /slow=40")
            .unwrap()
            .starts_with("ok: 1 requests")
    );
    for (command, expected) in [
        ("reprio 999999 3", "no request 999999"),
        ("reprio 1 64", "0 to 63"),
        ("priority /x", "CONDITIONS=LEVEL"),
        ("dance", "`help` lists them"),
    ] {
        let reply = ask(&socket, command).unwrap();
        assert!(
            reply.starts_with("error: ") && reply.contains(expected),
            "{reply}"
        );
    }
    assert!(ask(&socket, "status").unwrap().contains("\"under_way\":1"));
    assert_eq!(ask(&socket, "drain").unwrap(), "ok: draining\n");
    end.notify_one();
    assert_eq!(server.end(), 0);
    assert!(!socket.exists());
}

#[test]
fn every_request_has_a_line_in_the_log() {
    let folder = Folder::new();
    let log = folder.0.join("access.jsonl");
    let path = log.clone();
    let server = TestServer::with_config(&folder.0, |config| config.access_log = Some(path));
    server.get("/plaintext?x=%22", "priority: u=1\r\n");
    server.get("/nowhere", "");
    assert_eq!(server.end(), 0);
    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    for part in [
        "\"method\":\"GET\"",
        "\"path\":\"/plaintext\"",
        "\"query\":\"x=%22\"",
        "\"status\":200",
        "\"bytes\":13",
        "\"level\":12",
        "\"version\":\"1.1\"",
        "\"took_ms\":",
    ] {
        assert!(lines[0].contains(part), "{part} in {}", lines[0]);
    }
    assert!(lines[1].contains("\"status\":404"), "{}", lines[1]);
}

#[test]
fn metrics_count_requests_and_connections() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    for _ in 0..3 {
        server.get("/plaintext", "priority: u=2\r\n");
    }
    server.get("/nowhere", "");
    // A request ends after its client has the answer.
    server.wait_until_idle();
    let metrics = server.get("/metrics", "").text();
    for line in [
        "upshift_http_responses_total{class=\"2xx\"} 3",
        "upshift_http_responses_total{class=\"4xx\"} 1",
        "upshift_http_request_duration_seconds_count{level=\"20\"} 3",
        "upshift_connections_accepted_total 5",
        "upshift_http_in_flight{level=\"20\"} 0",
    ] {
        assert!(
            metrics.lines().any(|other| other == line),
            "{line} in\n{metrics}"
        );
    }
    // The metrics of the runtime follow, and each family occurs once.
    for part in [
        "upshift_level_polls_total{level=\"20\"}",
        "upshift_level_wait_seconds_bucket{level=\"20\",le=\"+Inf\"}",
        "upshift_vcpu_busy_seconds_total{vcpu=\"0\"}",
        "upshift_ring_enters_total{vcpu=\"0\"}",
        "upshift_preemption_suspensions_total 0",
    ] {
        assert!(metrics.contains(part), "{part} in {metrics}");
    }
    let families = metrics.lines().filter(|line| line.starts_with("# TYPE "));
    let mut names: Vec<_> = families.collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "{names:?}");
}

#[test]
fn endpoints_can_be_turned_off_and_the_matrix_is_bounded() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    assert_eq!(
        server.get("/matrix?n=3", "").text(),
        "{\"n\":3,\"trace\":276}"
    );
    for wrong in ["0", "513", "x", "-1", "99999999999999999999"] {
        assert_eq!(
            server.get(&format!("/matrix?n={wrong}"), "").status,
            400,
            "{wrong}"
        );
    }
    let server = TestServer::with_config(&folder.0, |config| config.endpoints.clear());
    for path in ["/healthz", "/metrics", "/plaintext", "/matrix"] {
        assert_eq!(server.get(path, "").status, 404, "{path}");
    }
}

/// Bytes that the server would refuse as a request head.
const INVALID_HEAD: &[u8] = b"POST / HTTP/1.1\r\nTransfer-Encoding: x\r\n\r\n";

#[test]
fn a_service_knows_its_peer_and_may_upgrade() {
    use axum::http::{Request, StatusCode};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let folder = Folder::new();
    let app = axum::Router::new().fallback(|mut request: Request<axum::body::Body>| async move {
        let connection = request.extensions().get::<upshift_serve::Connection>();
        let peer = connection.unwrap().peer.to_string();
        let upgrade = hyper::upgrade::on(&mut request);
        let echo = async move {
            let mut stream = hyper_util::rt::TokioIo::new(upgrade.await.unwrap());
            let mut buffer = [0; INVALID_HEAD.len()];
            stream.read_exact(&mut buffer).await.unwrap();
            stream.write_all(&buffer).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        upshift::spawn(echo, upshift::Priority::Inherit).detach();
        let headers = [
            ("connection", "upgrade".to_owned()),
            ("upgrade", "echo".to_owned()),
            ("peer", peer),
        ];
        (StatusCode::SWITCHING_PROTOCOLS, headers)
    });
    let server = TestServer::with_service(&folder, |_| {}, app);
    let head = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let mut stream = server.connect_and_send(head);
    let address = stream.local_addr().unwrap().to_string();
    let answer = read_until(&mut stream, |got| got.ends_with(b"\r\n\r\n"));
    let answer = Answer::parse(answer);
    assert_eq!(
        (answer.status, answer.header("peer")),
        (101, Some(&address[..]))
    );
    // The connection no longer belongs to the server, which does not inspect its bytes.
    server.wait_until_idle();
    stream.write_all(INVALID_HEAD).unwrap();
    assert_eq!(read_to_end(&mut stream), INVALID_HEAD);
}
