//! Checks that overload, slow readers and long requests cost a bounded amount of memory and time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Folder, PROGRAM, Server, TIMEOUT, command, metric, read_all, wait_until};

#[test]
fn with_preemption_a_long_request_is_suspended_for_short_ones() {
    let folder = Folder::new();
    let args = ["--cpu", "0", "--preempt", "on", "--quantum", "100us"];
    let server = Server::start(&folder, &args);
    let stderr_text = folder.read("stderr");
    if stderr_text.contains("long polls are not interrupted") {
        eprintln!("skipped: {}", stderr_text.trim());
        return;
    }
    let suspensions = || metric(&server, "upshift_preemption_suspensions_total");
    let deadline = Instant::now() + TIMEOUT;
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
            let answer = read_all(stream);
            assert!(answer.contains("\"n\":512"), "{answer}");
        }
    }
}

/// Returns the resident memory of the server, in MiB.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() / 1024
}

/// Starts a server with one vCPU and one arena. Free memory in the arena of one thread is not used
/// for another thread, so with several arenas their number would decide how much is resident.
fn start_with_one_arena(folder: &Folder, args: &[&str]) -> Server {
    let mut command = command(folder, &["--listen", "127.0.0.1:0", "--vcpus", "1"]);
    command.args(args).env("MALLOC_ARENA_MAX", "1");
    Server::launch(command.stderr(Stdio::null())).unwrap()
}

#[test]
fn overload_does_not_grow_memory_and_leaves_health_checks_alone() {
    let folder = Folder::new();
    let server = start_with_one_arena(&folder, &["--max-wait", "20ms"]);
    let address = server.address().to_string();
    // More requests than a vCPU (a worker of the runtime) can compute.
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
    // Each of the 300 connections has one request in progress, which holds 64 KiB: 19 MiB
    // together. The rest of the bound is a margin for the allocator.
    assert!(last < first + 32, "{first} MiB, then {last} MiB");
}

#[test]
fn clients_that_read_nothing_cost_little_memory_and_none_after_their_end() {
    const READERS: u64 = 400;
    const BURSTS: usize = 10;
    let folder = Folder::new();
    let big = std::fs::File::create(folder.0.join("big.bin")).unwrap();
    big.set_len(256 << 20).unwrap();
    let server = start_with_one_arena(&folder, &[]);
    server.get("/healthz", "");
    let before = resident(&server);
    for _ in 0..BURSTS {
        let readers: Vec<_> = (0..READERS).map(|_| server.send("/big.bin", "")).collect();
        for reader in &readers {
            // The response has begun.
            assert_eq!(reader.peek(&mut [0]).unwrap(), 1);
        }
        // Each reader may cost a piece of 64 KiB, and buffers for the head; the bound leaves a
        // margin. Without limits hyper would buffer several times that. Memory that earlier readers
        // kept would add up.
        let mut max_mib = 0;
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(50));
            max_mib = resident(&server).max(max_mib);
        }
        let kib_per_reader = (max_mib - before) * 1024 / READERS;
        assert!(kib_per_reader < 200, "{kib_per_reader} KiB for each reader");
        drop(readers);
        // The connection of this request is open, too.
        wait_until("the end of the connections", || {
            metric(&server, "upshift_connections_open") <= 1
        });
    }
}

/// Starts a server under a resource limit that the shell sets. The server's messages are in
/// `FOLDER/stderr`.
fn start_under_limit(limit: &str, folder: &Folder, args: &[&str]) -> Server {
    let script = format!("ulimit {limit}; exec \"$@\"");
    let errors = std::fs::File::create(folder.0.join("stderr")).unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", &script, "sh", PROGRAM, "serve"])
        .args(["--listen", "127.0.0.1:0", "--vcpus", "1"])
        .args(args)
        .current_dir(&folder.0)
        .env("UPSHIFT_DAEMON_SOCKET", folder.0.join("daemon"))
        .stdin(Stdio::null())
        .stderr(errors);
    Server::launch(&mut command).unwrap_or_else(|| panic!("{}", folder.read("stderr")))
}

#[test]
fn connections_leave_descriptors_for_the_files_of_open_connections() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let server = start_under_limit("-n 100", &folder, &[]);
    // More connections than the server can have.
    let mut open: Vec<_> = (0..150)
        .map(|_| TcpStream::connect(server.address()).unwrap())
        .collect();
    let (mut served, mut closed) = (0, 0);
    for stream in &mut open {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let _ = stream.write_all(b"GET /page.txt HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => closed += 1,
            Ok(length) => {
                let answer = String::from_utf8_lossy(&bytes[..length]);
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                served += 1;
            }
        }
    }
    // The server has 100 descriptors, so at least 50 of the 150 connections are closed. Beside its
    // own descriptors it must have at least ten connections.
    assert!(
        served >= 10 && closed >= 50,
        "{served} served, {closed} closed"
    );
    let stderr_text = folder.read("stderr");
    assert!(
        stderr_text.contains("with 100 descriptors; raise the limit"),
        "{stderr_text}"
    );
    drop(open);
    // Until the server has noticed the closed connections, it closes new connections, too.
    wait_until("an answer", || {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let _ = stream.write_all(b"GET /page.txt HTTP/1.0\r\nhost: a\r\n\r\n");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok() && answer.contains("a page")
    });
}

/// Repeatedly opens a burst of connections, each of which is closed at once and holds a descriptor
/// for a moment. Connections that were open before must still be answered.
#[test]
fn a_burst_of_connections_takes_no_descriptor_from_open_connections() {
    const OPEN: usize = 40;
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let server = start_under_limit("-n 256", &folder, &[]);
    let connect = || {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    };
    let mut open: Vec<_> = (0..OPEN).map(|_| connect()).collect();
    let mut ask_all = || {
        let request = b"GET /page.txt HTTP/1.1\r\nhost: a\r\n\r\n";
        for stream in &mut open {
            stream.write_all(request).unwrap();
        }
        for stream in &mut open {
            let mut bytes = [0; 4096];
            let length = stream.read(&mut bytes).unwrap();
            let answer = String::from_utf8_lossy(&bytes[..length]);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    };
    ask_all();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let burst: Vec<_> = (0..400).map(|_| connect()).collect();
                drop(burst);
            }
        });
        for _ in 0..200 {
            ask_all();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let stderr_text = folder.read("stderr");
    assert!(
        stderr_text.contains("with 256 descriptors"),
        "{stderr_text}"
    );
    assert!(!stderr_text.contains("cannot accept"), "{stderr_text}");
}

#[test]
fn a_log_that_may_not_grow_loses_lines_and_nothing_else() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let server = start_under_limit("-f 0", &folder, &["--access-log", "log"]);
    for _ in 0..3 {
        assert!(server.get("/page.txt", "").contains("a page"));
        // Lines are written to the log ten times a second.
        std::thread::sleep(Duration::from_millis(150));
    }
    assert_eq!(folder.read("log"), "");
}

/// Stops the server repeatedly for longer than `max-wait` while requests queue, and expects every
/// request to be answered.
#[test]
fn a_server_that_has_no_cpu_for_a_while_refuses_nothing() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--max-wait", "100ms"]);
    let is_over = AtomicBool::new(false);
    let client = || {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (mut answered, mut refused) = (0_u32, 0_u32);
        let mut answer = [0; 4096];
        while !is_over.load(Ordering::Relaxed) {
            // A short response arrives in one piece.
            let request = b"GET /matrix?n=32 HTTP/1.1\r\nhost: a\r\n\r\n";
            stream.write_all(request).unwrap();
            let count = stream.read(&mut answer).unwrap();
            match &answer[..count.min(12)] {
                b"HTTP/1.1 200" => answered += 1,
                b"HTTP/1.1 503" => refused += 1,
                other => panic!("{:?}", String::from_utf8_lossy(other)),
            }
        }
        (answered, refused)
    };
    let counts: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(client)).collect();
        for _ in 0..8 {
            thread::sleep(Duration::from_millis(250));
            server.signal("STOP");
            thread::sleep(Duration::from_millis(150));
            server.signal("CONT");
        }
        thread::sleep(Duration::from_millis(250));
        is_over.store(true, Ordering::Relaxed);
        let counts = clients.into_iter().map(|client| client.join().unwrap());
        counts.collect()
    });
    assert!(counts.iter().all(|(answered, _)| *answered > 0));
    let refused: u32 = counts.iter().map(|(_, refused)| refused).sum();
    assert_eq!(refused, 0, "(answered, refused) by client: {counts:?}");
}
