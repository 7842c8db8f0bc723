//! A server that is out of descriptors. Alone in its file, because the limit is that of the whole process.

use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use upshift_load::http;
use upshift_load::threads::PlaintextServer;

fn limit_open_files(soft: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a live local.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(got, 0);
    limit.rlim_cur = soft;
    // SAFETY: `limit` is a live local.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0);
}

/// CPU time of this process; unlike `/proc` it needs no descriptor.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a live local.
    let got = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(got, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn is_answered(mut stream: &TcpStream, wait: Duration) -> bool {
    let mut reply = vec![0; http::REPLY.len()];
    stream.set_read_timeout(Some(wait)).unwrap();
    stream.read_exact(&mut reply).is_ok() && reply == http::REPLY
}

/// Whether something has come, without waiting for it.
fn has_answer(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let come = stream.peek(&mut [0]).is_ok_and(|count| count > 0);
    stream.set_nonblocking(false).unwrap();
    come
}

#[test]
fn a_server_out_of_descriptors_waits_and_recovers() {
    let server = PlaintextServer::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
    let addr: SocketAddr = server.local_addrs()[0];
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let thread = std::thread::spawn(move || server.serve(flag).unwrap());
    let get = |mut stream: &TcpStream| stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let soon = Duration::from_secs(20);

    // The sockets of the clients exist before the limit falls; the server then has room for two.
    let sockets: Vec<Socket> = (0..8)
        .map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap())
        .collect();
    let first = TcpStream::connect(addr).unwrap();
    get(&first);
    assert!(is_answered(&first, soon));
    let highest = sockets.iter().map(|s| s.as_raw_fd()).max().unwrap();
    limit_open_files(highest as u64 + 5);
    let clients: Vec<TcpStream> = sockets
        .into_iter()
        .map(|socket| {
            socket.connect(&addr.into()).unwrap();
            socket.into()
        })
        .collect();
    clients.iter().for_each(get);
    let began = Instant::now();
    while !clients.iter().any(has_answer) && began.elapsed() < soon {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let (served, waiting): (Vec<_>, Vec<_>) = clients.into_iter().partition(has_answer);
    assert!(!waiting.is_empty() && !served.is_empty());

    // It lives, and does not burn the CPU: spinning would take nearly all of the second.
    let before = cpu_time();
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time() - before;
    assert!(used < Duration::from_millis(500), "spinning: {used:?}");
    get(&first);
    assert!(is_answered(&first, soon));

    // Descriptors come back, and so do connections that waited.
    drop(served);
    limit_open_files(1024);
    for client in &waiting {
        assert!(is_answered(client, soon), "still waiting after recovery");
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}
