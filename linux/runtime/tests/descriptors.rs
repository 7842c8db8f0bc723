//! Tests of running out of descriptors. Every call must return an error, none may hang, and all
//! calls must work when descriptors are free again. This file has one test, because the limit is
//! that of the process.

#[path = "support/read_concurrently.rs"]
mod read_concurrently;

use std::io;
use std::time::Duration;

use upshift::fs::File;
use upshift::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use upshift::process::Command;
use upshift::signal::{SIGUSR1, Signal};
use upshift::{Runtime, time};

use read_concurrently::read_concurrently;

const EMFILE: i32 = 24;

fn exhaust_descriptors() -> Vec<std::fs::File> {
    let mut files = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        files.push(file);
    }
    files
}

fn limit_descriptors(max_descriptors: u64) {
    let pid = std::process::id().to_string();
    let status = std::process::Command::new("prlimit")
        .args(["--pid", &pid, &format!("--nofile={max_descriptors}")])
        .status();
    assert!(status.is_ok_and(|status| status.success()));
}

fn is_exhaustion<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| {
        error.raw_os_error() == Some(EMFILE) || error.to_string().contains("Too many open files")
    })
}

#[test]
fn running_out_of_descriptors_is_a_temporary_error() {
    if std::process::Command::new("prlimit")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("skipped: prlimit (util-linux) is not installed");
        return;
    }
    limit_descriptors(256);
    let folder = tempfile::tempdir().unwrap();
    let [short, long] = [100, 50_000].map(|length: usize| {
        let path = folder.path().join(length.to_string());
        std::fs::write(&path, vec![7; length]).unwrap();
        path
    });
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // This call starts a thread for blocking functions.
        upshift::fs::canonicalize("/").await.unwrap();
        let mut files = exhaust_descriptors();

        assert!(is_exhaustion(TcpStream::connect(address).await));
        assert!(is_exhaustion(UnixStream::pair()));
        assert!(is_exhaustion(UdpSocket::bind("127.0.0.1:0")));
        assert!(is_exhaustion(upshift::io::pipe()));
        assert!(is_exhaustion(File::open("/dev/null").await));
        assert!(is_exhaustion(upshift::fs::read_dir("/").await));
        for read in read_concurrently(&[long.clone(), short.clone()]).await {
            assert!(is_exhaustion(read));
        }
        assert!(is_exhaustion(Signal::new(SIGUSR1)));
        assert!(is_exhaustion(Command::new("true").spawn().await));

        // One descriptor is free, for the client, and none for the server's end.
        files.pop();
        let client = std::net::TcpStream::connect(address).unwrap();
        let accepted = time::timeout(Duration::from_secs(20), listener.accept()).await;
        assert!(is_exhaustion(accepted.expect("the accept did not end")));
        drop(files);
        assert_eq!(upshift::fs::read(&long).await.unwrap(), vec![7; 50_000]);
        assert_eq!(upshift::fs::read(&short).await.unwrap(), vec![7; 100]);
        // The connection was not lost, but waited in the queue.
        let accepted = time::timeout(Duration::from_secs(20), listener.accept()).await;
        let (mut stream, peer) = accepted.expect("the accept did not end").unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        drop(client);
        assert!(stream.recv().await.unwrap().is_empty());
        let status = Command::new("true").status().await.unwrap();
        assert!(status.success());
    });
}
