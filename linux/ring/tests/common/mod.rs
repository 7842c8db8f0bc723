//! Shared parts of the tests: a small executor, socket pairs, child processes and limits. The
//! executor polls only futures that were woken, so a lost wake-up appears as a time-out.
#![allow(dead_code, reason = "each test file uses only some of the items")]

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

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A waker that records its wakes and kicks the ring.
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
    /// Creates a flag that is set, so that the executor polls its future for the first time.
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

pub(crate) fn run_all(ring: &Ring, jobs: Vec<Job<'_>>) {
    let mut jobs: Vec<_> = jobs
        .into_iter()
        .map(|job| (job, Flag::new(ring), false))
        .collect();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut pending_jobs = 0;
        let mut polled = false;
        for (job, flag, is_done) in &mut jobs {
            if !*is_done && flag.take() {
                polled = true;
                let waker = Waker::from(flag.clone());
                *is_done = job
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_ready();
            }
            pending_jobs += usize::from(!*is_done);
        }
        if pending_jobs == 0 {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{pending_jobs} jobs have not completed within {TIMEOUT:?}"
        );
        if polled {
            ring.submit().unwrap();
        } else {
            ring.wait(Some(Duration::from_secs(1))).unwrap();
        }
        ring.reap();
    }
}

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

/// Waits on the ring and reaps its completions until `condition` returns true.
pub(crate) fn drive_until(ring: &Ring, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "the condition was not met within {TIMEOUT:?}"
        );
        ring.wait(Some(Duration::from_millis(20))).unwrap();
        ring.reap();
    }
}

pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

pub(crate) fn ring() -> Ring {
    Ring::new(Config::default()).unwrap()
}

/// Returns whether io_uring works here, and reports that the test is skipped if it does not.
pub(crate) fn has_io_uring() -> bool {
    let works = upshift_ring::probe_ring().is_ok();
    if !works {
        println!("skipped: io_uring does not work on this machine");
    }
    works
}

/// Returns a configuration that never falls back to readiness.
pub(crate) fn io_uring_config() -> Config {
    Config {
        driver: Driver::Ring,
        ..Config::default()
    }
}

/// Returns both ends of a TCP connection over loopback: one as a descriptor for the ring, the peer
/// as a blocking stream.
pub(crate) fn pair() -> (Fd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (local, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(TIMEOUT)).unwrap();
    peer.set_nodelay(true).unwrap();
    (Fd::new(OwnedFd::from(local)), peer)
}

/// Runs the test `name` of this file in a child process, in which [`is_child`] returns true.
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

/// Returns whether this process is the child that runs the test `name`.
pub(crate) fn is_child(name: &str) -> bool {
    std::env::var("UPSHIFT_RING_CHILD").is_ok_and(|child| child == name)
}

/// Guard of [`limit_descriptors`]: restores the former limit when dropped.
pub(crate) struct DescriptorLimit(libc::rlimit);

impl Drop for DescriptorLimit {
    fn drop(&mut self) {
        // SAFETY: `self.0` is a valid `rlimit`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &self.0) }, 0);
    }
}

/// Lowers RLIMIT_NOFILE so that this process can open only `extra` more descriptors.
#[must_use]
pub(crate) fn limit_descriptors(extra: u64) -> DescriptorLimit {
    let next = std::fs::File::open("/dev/null").unwrap();
    let highest = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid `rlimit`.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let former = DescriptorLimit(limit);
        limit.rlim_cur = highest + extra;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        former
    }
}

pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
