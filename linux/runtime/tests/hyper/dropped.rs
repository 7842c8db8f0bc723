//! Tests that bytes which a connection had accepted before it was dropped reach a peer that reads
//! slowly.

use std::future::poll_fn;
use std::io::Read;
use std::net::TcpStream as Peer;
use std::pin::Pin;
use std::time::{Duration, Instant};

use hyper::rt::Write;
use socket2::SockRef;
use upshift::Runtime;
use upshift::hyper::Io;
use upshift::net::TcpListener;

/// Rate at which the peer reads, in bytes per second.
const RATE: u32 = 200_000;
/// Time for which the peer reads slowly. During this time the socket has no room for another send.
const SLOW_PERIOD: Duration = Duration::from_secs(3);
/// A longer pause of the peer may end the connection.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// Requested size of the socket's send buffer, in bytes.
const SEND_BUFFER: usize = 1 << 20;
/// Number of attempts; the test ends at the first one in which all bytes arrive.
const ATTEMPTS: u32 = 5;

/// Reads slowly for [`SLOW_PERIOD`], and then at full speed. Returns the number of bytes, and the
/// longest pause of the slow part.
fn read(mut peer: Peer) -> (usize, Duration) {
    let (start, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    let (mut buffer, mut count_read) = ([0; 4096], 0);
    while let Ok(count @ 1..) = peer.read(&mut buffer) {
        count_read += count;
        if start.elapsed() < SLOW_PERIOD {
            longest = longest.max(last.elapsed());
            last = Instant::now();
            let due = Duration::from_secs(count_read as u64) / RATE;
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
    (count_read, longest)
}

#[test]
fn the_last_bytes_of_a_dropped_connection_wait_for_a_slow_reader() {
    for _ in 0..ATTEMPTS {
        let runtime = Runtime::builder().vcpus(1).build().unwrap();
        let (accepted, (received, pause)) = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let peer = Peer::connect(listener.local_addr().unwrap()).unwrap();
            SockRef::from(&peer).set_recv_buffer_size(65_536).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_send_buffer_size(SEND_BUFFER).unwrap();
            let mut io = Io::new(stream);
            let mut accepted = 0;
            // A send that does not complete in this time shows that the socket is full.
            let full = Duration::from_millis(300);
            let piece = [7; Io::MAX_COPIED];
            loop {
                let write = poll_fn(|cx| Pin::new(&mut io).poll_write(cx, &piece));
                match upshift::time::timeout(full, write).await {
                    Ok(count) => accepted += count.unwrap(),
                    Err(_) => break,
                }
            }
            let read = upshift::spawn_blocking(move || read(peer));
            drop(io);
            (accepted, read.await.unwrap())
        });
        if received == accepted {
            return;
        }
        assert!(
            pause > MAX_PAUSE,
            "{received} of {accepted} bytes arrived; longest pause of the peer: {pause:?}"
        );
    }
    println!("skipped: the machine gives the peer too little CPU time");
}
