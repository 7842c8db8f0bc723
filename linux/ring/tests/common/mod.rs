//! A tiny executor for tests. It polls only woken futures, so a lost wake is a time-out.
#![allow(dead_code, reason = "each test file uses its part")]

use std::future::Future;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use upshift_ring::{Config, Driver, Fd, Remote, Ring};

/// Time after which a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Flag {
    woken: AtomicBool,
    remote: Remote,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.remote.kick();
    }
}

impl Flag {
    pub(crate) fn new(ring: &Ring) -> Arc<Self> {
        Arc::new(Flag {
            woken: AtomicBool::new(true),
            remote: ring.remote(),
        })
    }

    pub(crate) fn take(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }
}

pub(crate) type Job<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs all jobs to their end.
pub(crate) fn run_all(ring: &Ring, jobs: Vec<Job<'_>>) {
    let mut jobs: Vec<_> = jobs
        .into_iter()
        .map(|job| (job, Flag::new(ring), false))
        .collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut left = 0;
        let mut polled = false;
        for (job, flag, done) in &mut jobs {
            if !*done && flag.take() {
                polled = true;
                let waker = Waker::from(flag.clone());
                *done = job
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_ready();
            }
            left += usize::from(!*done);
        }
        if left == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{left} jobs were never woken");
        if polled {
            ring.submit().unwrap();
        } else {
            ring.wait(Some(Duration::from_secs(1))).unwrap();
        }
        ring.reap();
    }
}

/// Runs one future to its end.
pub(crate) fn block_on<F: Future>(ring: &Ring, future: F) -> F::Output {
    let mut output = None;
    let mut future = pin!(future);
    let slot = &mut output;
    run_all(
        ring,
        vec![Box::pin(async move {
            *slot = Some(future.as_mut().await);
        })],
    );
    output.unwrap()
}

/// Turns the ring until `done`.
pub(crate) fn turn_until(ring: &Ring, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "did not happen in time");
        ring.wait(Some(Duration::from_millis(20))).unwrap();
        ring.reap();
    }
}

/// Polls once with a waker that does nothing.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

pub(crate) fn ring() -> Ring {
    Ring::new(Config::default()).unwrap()
}

/// Returns whether io_uring works here, for tests of io_uring.
pub(crate) fn has_io_uring() -> bool {
    let there = upshift_ring::probe_ring().is_ok();
    if !there {
        println!("skipped: it tests io_uring, which does not work here");
    }
    there
}

/// Returns a configuration that uses io_uring in any case.
pub(crate) fn on_io_uring() -> Config {
    Config {
        driver: Driver::Ring,
        ..Config::default()
    }
}

/// Returns a connected pair over loopback TCP: ours as a shared descriptor, theirs as a stream.
pub(crate) fn pair() -> (Fd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    theirs.set_nodelay(true).unwrap();
    (Fd::new(OwnedFd::from(ours)), theirs)
}

/// Runs the test `name` of this file in a process of its own, where [`is_child`] is true.
pub(crate) fn in_child(name: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env("UPSHIFT_RING_CHILD", name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

pub(crate) fn is_child(name: &str) -> bool {
    std::env::var("UPSHIFT_RING_CHILD").is_ok_and(|child| child == name)
}

/// Restores the limit of descriptors when dropped.
pub(crate) struct Limit(libc::rlimit);

impl Drop for Limit {
    fn drop(&mut self) {
        // SAFETY: a valid structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &self.0) }, 0);
    }
}

/// Leaves room for `extra` more descriptors in this process.
#[must_use]
pub(crate) fn limit_descriptors(extra: u64) -> Limit {
    let next = std::fs::File::open("/dev/null").unwrap();
    let highest = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: valid structures.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let before = Limit(limit);
        limit.rlim_cur = highest + extra;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        before
    }
}

pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
