//! Tests of Unix sockets: their mode, their limits, replacement of a stale socket, and sockets that
//! another program passes on.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;

use upshift_serve::{Address, BindTo, Config, Server};

use crate::harness::{Answer, Folder, TestServer, wait_until};

fn ask(socket: &Path, path: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    Answer::parse(answer)
}

fn unix_address(path: &Path, mode: Option<u32>) -> Address {
    let path = path.to_owned();
    BindTo::Unix { path, mode }.into()
}

#[test]
fn a_unix_socket_serves_the_same_files_as_a_port() {
    let folder = Folder::new();
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
    folder.write("site/long", &long);
    let (path, log) = (folder.0.join("socket"), folder.0.join("log"));
    let listens = path.clone();
    let logs = log.clone();
    let server = TestServer::with_config(&folder.0.join("site"), move |config| {
        config.listen.push(unix_address(&listens, Some(0o600)));
        config.access_log = Some(logs);
        // These limits apply to a network address. A Unix socket connects a proxy, which has many
        // clients.
        config.limits.connections_per_peer = 1;
        config.limits.request_rate = 1;
    });
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    let others: Vec<_> = (0..3)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    for _ in 0..3 {
        let answer = ask(&path, "/long");
        assert_eq!(answer.status, 200);
        assert!(answer.body == long);
    }
    drop(others);
    assert!(server.is_healthy());
    server.end();
    assert!(!path.exists());
    wait_until("the log is written", || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.contains("\"peer\":\"unix\"") && text.contains("\"peer\":\"127.0.0.1:")
    });
}

#[test]
fn a_server_replaces_the_socket_of_a_killed_server_but_not_of_a_running_one() {
    let folder = Folder::new();
    let path = folder.0.join("socket");
    // A killed server leaves such a file.
    drop(UnixListener::bind(&path).unwrap());
    let listens = path.clone();
    let server = TestServer::with_config(&folder.0, |config| {
        config.listen.push(unix_address(&listens, None))
    });
    assert_eq!(ask(&path, "/healthz").status, 200);

    let second = Config {
        listen: vec![unix_address(&path, None)],
        ..Config::default()
    };
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    let refused = runtime.block_on(async { Server::bind(second).map(drop) });
    let refused = refused.unwrap_err();
    assert!(
        refused.contains("another server listens there"),
        "{refused}"
    );
    assert!(refused.contains(path.to_str().unwrap()), "{refused}");
    assert_eq!(ask(&path, "/healthz").status, 200);
    server.end();
}

#[test]
fn a_socket_that_another_program_passes_on_is_served_and_left_in_place() {
    let folder = Folder::new();
    let path = folder.0.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let passed_listener = OwnedFd::from(listener.try_clone().unwrap());
    let (send, receive) = mpsc::channel();
    let root = folder.0.clone();
    let thread = std::thread::spawn(move || {
        let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
        runtime.block_on(async move {
            let config = Config {
                root,
                ..Config::default()
            };
            let server = Server::bind_to(config, vec![passed_listener]).unwrap();
            let paths = server.paths();
            let started = server.start().unwrap();
            send.send((paths, started.control())).unwrap();
            started.run().await
        })
    });
    let (paths, control) = receive.recv().unwrap();
    assert_eq!(paths, [path.as_path()]);
    assert_eq!(ask(&path, "/healthz").status, 200);
    control.drain();
    assert_eq!(thread.join().unwrap(), 0);
    // The socket still accepts connections, for the next server.
    UnixStream::connect(&path).unwrap();
    drop(listener);
}
