//! Running out of descriptors: every call says so, none hangs, and all go on when there are
//! some again. One test, because the limit is the process's.

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

/// Takes all descriptors that are left.
fn take_all() -> Vec<std::fs::File> {
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    taken
}

fn limit_descriptors(most: u64) {
    let pid = std::process::id().to_string();
    let status = std::process::Command::new("prlimit")
        .args(["--pid", &pid, &format!("--nofile={most}")])
        .status();
    assert!(status.is_ok_and(|status| status.success()));
}

fn is_exhaustion<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| {
        error.raw_os_error() == Some(EMFILE) || error.to_string().contains("Too many open files")
    })
}

#[test]
fn running_out_of_descriptors_is_an_error_and_passes() {
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
        // The threads for blocking calls are there.
        upshift::fs::canonicalize("/").await.unwrap();
        let mut taken = take_all();

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

        // One descriptor for a client, none for the server's end.
        taken.pop();
        let client = std::net::TcpStream::connect(address).unwrap();
        let accepted = time::timeout(Duration::from_secs(20), listener.accept()).await;
        assert!(is_exhaustion(accepted.expect("an error, not a wait")));
        drop(taken);
        assert_eq!(upshift::fs::read(&long).await.unwrap(), vec![7; 50_000]);
        assert_eq!(upshift::fs::read(&short).await.unwrap(), vec![7; 100]);
        // The connection was not lost: it waited.
        let accepted = time::timeout(Duration::from_secs(20), listener.accept()).await;
        let (mut stream, peer) = accepted.expect("it goes on accepting").unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        drop(client);
        assert!(stream.recv().await.unwrap().is_empty());
        let status = Command::new("true").status().await.unwrap();
        assert!(status.success());
    });
}
