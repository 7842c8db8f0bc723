//! What the ring itself costs: no-ops through start, submit, reap and poll, in batches of 1 and 32, beside the same no-ops
//! through the bare `io-uring` crate; the look for completions; and the user time of one request of a server (an event of a
//! receiving stream, then a send): what passes outside of the system calls, the waker included.
//!
//! `cargo run --release -p upshift-ring --example nop_cost`
//!
//! Figures are the best of several rounds. It is not a benchmark of a server: nothing here waits.

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;
use upshift_ring::{Config, Fd, Mode, Ring, op};

/// A waker that costs what a reference-counted one must cost, and no more.
struct Counter(AtomicU64);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn best(rounds: u32, mut round: impl FnMut() -> f64) -> f64 {
    (0..rounds).map(|_| round()).fold(f64::MAX, f64::min)
}

fn nanoseconds(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}

fn ring_nops(ring: &Ring, cx: &mut Context<'_>, batch: usize, turns: usize) -> f64 {
    let mut flying = Vec::with_capacity(batch);
    nanoseconds(batch * turns, || {
        for _ in 0..turns {
            for _ in 0..batch {
                let mut nop = ring.start(op::Nop::new(), 0);
                assert!(Pin::new(&mut nop).poll(cx).is_pending());
                flying.push(nop);
            }
            ring.submit().expect("submit");
            ring.reap();
            for mut nop in flying.drain(..) {
                assert!(Pin::new(&mut nop).poll(cx).is_ready());
            }
        }
    })
}

fn bare_nops(ring: &mut io_uring::IoUring, batch: usize, turns: usize) -> f64 {
    nanoseconds(batch * turns, || {
        for turn in 0..turns {
            for _ in 0..batch {
                let entry = io_uring::opcode::Nop::new().build().user_data(turn as u64);
                // SAFETY: a no-op points to nothing.
                unsafe { ring.submission().push(&entry) }.expect("room");
            }
            ring.submit().expect("submit");
            assert_eq!(ring.completion().map(black_box).count(), batch);
        }
    })
}

/// One request: wait for bytes, look at them, send an answer. Returns (user ns, total ns) per request, `batch` connections at
/// a time. The user time is what passes outside of the enters.
fn requests(waker: &Waker, batch: usize, turns: usize) -> Result<(f64, f64), std::io::Error> {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    let ring = Ring::new(Config::default())?;
    let mut cx = Context::from_waker(waker);
    let mut peers = Vec::new();
    let mut streams = Vec::new();
    for _ in 0..batch {
        let (near, far) = UnixStream::pair()?;
        let fd = Fd::new(std::os::fd::OwnedFd::from(near));
        streams.push((ring.recv_multi(fd.clone(), 0), fd));
        peers.push(far);
    }
    for (stream, _) in &mut streams {
        assert!(stream.poll_next(&mut cx).is_pending());
    }
    ring.submit()?;
    let (mut user, mut total) = (0, 0);
    let mut sends = Vec::with_capacity(batch);
    let mut reply = [0; 64];
    let clock = best(10, || {
        nanoseconds(1000, || {
            for _ in 0..1000 {
                black_box(Instant::now());
            }
        })
    });
    for _ in 0..turns {
        for peer in &mut peers {
            peer.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        }
        let begin = Instant::now();
        ring.submit()?;
        let received = Instant::now();
        ring.reap();
        for (stream, fd) in &mut streams {
            let Poll::Ready(buffer) = stream.poll_next(&mut cx) else {
                panic!("the bytes are there");
            };
            assert_eq!(buffer?.len(), 18);
            let mut send = ring.start(op::Send::new(fd.clone(), "HTTP/1.1 200 OK\r\n\r\n"), 0);
            assert!(Pin::new(&mut send).poll(&mut cx).is_pending());
            assert!(stream.poll_next(&mut cx).is_pending());
            sends.push(send);
        }
        let sending = Instant::now();
        ring.submit()?;
        let sent = Instant::now();
        ring.reap();
        for mut send in sends.drain(..) {
            assert!(Pin::new(&mut send).poll(&mut cx).is_ready());
        }
        let end = Instant::now();
        user += (sending - received).as_nanos() + (end - sent).as_nanos();
        total += (end - begin).as_nanos();
        for peer in &mut peers {
            let _ = peer.read(&mut reply)?;
        }
    }
    let count = (turns * batch) as f64;
    // Two intervals per turn, each holding about one reading of the clock.
    let readings = 2.0 * clock / batch as f64;
    Ok((user as f64 / count - readings, total as f64 / count))
}

fn main() -> std::io::Result<()> {
    let waker = Waker::from(Arc::new(Counter(AtomicU64::new(0))));
    let mut cx = Context::from_waker(&waker);
    let ring = Ring::new(Config::default())?;
    let mut builder = io_uring::IoUring::builder();
    builder.setup_cqsize(4096);
    if ring.mode() == Mode::DeferTaskrun {
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all();
    }
    let mut bare: io_uring::IoUring = builder.build(256)?;
    println!("mode: {}", ring.mode());
    for batch in [1, 32] {
        let turns = 200_000 / batch;
        let ours = best(7, || ring_nops(&ring, &mut cx, batch, turns));
        let theirs = best(7, || bare_nops(&mut bare, batch, turns));
        println!("NOP, batch {batch:2}: ring {ours:6.1} ns, bare crate {theirs:6.1} ns");
    }
    let look = best(7, || {
        nanoseconds(1_000_000, || {
            for _ in 0..1_000_000 {
                black_box(black_box(&ring).has_completions());
            }
        })
    });
    println!("has_completions: {look:.2} ns");
    for batch in [1, 32] {
        let mut user = f64::MAX;
        let mut total = f64::MAX;
        for _ in 0..7 {
            let (u, t) = requests(&waker, batch, 20_000 / batch)?;
            user = user.min(u);
            total = total.min(t);
        }
        println!(
            "request, batch {batch:2}: {user:6.1} ns in this crate, {total:6.1} ns with the kernel (Unix socket)"
        );
    }
    Ok(())
}
