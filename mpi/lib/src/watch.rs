//! The watchdog: a thread that sleeps until a rank of this node dies, hangs, or the job is ended.
//!
//! A thread, not a coroutine: it must act also while this rank computes or is stuck in MPI. Deaths arrive by pidfd. Hangs show
//! by heartbeats, which a coroutine of level 0 counts in the rank's page; what is compared is how many of its own looks
//! the watchdog has made since the count moved, so a job that is stopped and continued as a whole has not hung.
//!
//! When a rank dies: one survivor of the node says which, and what its last level-0 request was; whatever is awaited fails
//! with [`Error::Died`](crate::Error::Died); after a grace, in which a server can still refuse what comes, each survivor exits with
//! status [`STATUS`]. `mpirun` notices the death at the same time and sends SIGTERM to all ranks, which therefore waits for the grace, too;
//! it sends SIGKILL a second later. No call of MPI is made: none of them is safe with a rank gone.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Death;
use crate::job::Job;
use crate::node::{Node, RUNS};

/// Exit status of a rank whose job has failed.
pub const STATUS: i32 = 70;

/// Time between two heartbeats, and two looks at them.
pub(crate) const BEAT: Duration = Duration::from_millis(250);

/// How patient it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) hang: Duration,
    pub(crate) grace: Duration,
}

/// The thread, which ends with this.
pub(crate) struct Watch {
    stop: Arc<OwnedFd>,
    thread: Option<thread::JoinHandle<()>>,
    signal: signal_hook_registry::SigId,
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, or an error.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, or an error.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as RawFd)),
        }
    }
}

fn set(event: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes to an eventfd; async-signal-safe.
    unsafe { libc::write(event, (&raw const one).cast(), 8) };
}

impl Watch {
    /// Starts it. All ranks of the node have their pages.
    pub(crate) fn start(job: &Arc<Job>, patience: Patience) -> io::Result<Watch> {
        let (stop, term) = (Arc::new(eventfd()?), Arc::new(eventfd()?));
        let node = job.node.clone();
        let mut peers = Vec::new();
        for nth in 0..node.ranks.len() {
            let page = node.page(nth);
            let fd = if node.is_me(nth) {
                None
            } else {
                Some(pidfd(page.pid.load(Relaxed))?)
            };
            peers.push(Peer {
                nth,
                fd,
                beats: page.beats.load(Relaxed),
                still: 0,
            });
        }
        let raise = term.clone();
        // SAFETY: the handler writes to an eventfd, which it owns.
        let signal = unsafe {
            signal_hook_registry::register(libc::SIGTERM, move || set(raise.as_raw_fd()))?
        };
        let watcher = Watcher {
            job: Arc::downgrade(job),
            node,
            patience,
            peers,
            stop: stop.clone(),
            term,
        };
        let thread = thread::Builder::new()
            .name("upshift-mpi-watch".into())
            .spawn(move || watcher.run())?;
        Ok(Watch {
            stop,
            thread: Some(thread),
            signal,
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        set(self.stop.as_raw_fd());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        signal_hook_registry::unregister(self.signal);
    }
}

struct Peer {
    nth: usize,
    fd: Option<OwnedFd>,
    beats: u64,
    still: u32,
}

struct Watcher {
    job: Weak<Job>,
    node: Arc<Node>,
    patience: Patience,
    peers: Vec<Peer>,
    stop: Arc<OwnedFd>,
    term: Arc<OwnedFd>,
}

/// What a wait has brought.
enum Event {
    Stop,
    Term,
    Died(usize),
    Nothing,
}

impl Watcher {
    fn run(mut self) {
        loop {
            let looked = Instant::now();
            let event = self.wait(BEAT);
            let whole = looked.elapsed() >= BEAT;
            match event {
                Event::Stop => return,
                Event::Died(nth) => return self.fail(nth, None),
                // A rank may have died, too: `mpirun` is often faster.
                Event::Term => {
                    let deadline = Instant::now() + self.patience.grace / 4;
                    while Instant::now() < deadline {
                        match self.wait(Duration::from_millis(10)) {
                            Event::Died(nth) => return self.fail(nth, None),
                            Event::Stop => return,
                            _ => {}
                        }
                        thread::sleep(Duration::from_millis(5));
                    }
                    exit(128 + libc::SIGTERM);
                }
                Event::Nothing if whole => {
                    if let Some((nth, time)) = self.hung() {
                        return self.fail(nth, Some(time));
                    }
                }
                Event::Nothing => {}
            }
        }
    }

    fn wait(&mut self, limit: Duration) -> Event {
        let own = [self.stop.as_raw_fd(), self.term.as_raw_fd()];
        let theirs = self
            .peers
            .iter()
            .map(|peer| peer.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd));
        let mut polled: Vec<libc::pollfd> = own
            .into_iter()
            .chain(theirs)
            .map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let milliseconds = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: an array of this length.
        unsafe {
            libc::poll(
                polled.as_mut_ptr(),
                polled.len() as libc::nfds_t,
                milliseconds,
            )
        };
        if polled[0].revents != 0 {
            return Event::Stop;
        }
        for (peer, entry) in self.peers.iter_mut().zip(&polled[2..]) {
            if entry.revents == 0 {
                continue;
            }
            // Once is enough.
            peer.fd = None;
            if self.node.page(peer.nth).phase.load(Acquire) == RUNS {
                return Event::Died(peer.nth);
            }
        }
        if polled[1].revents != 0 {
            return Event::Term;
        }
        Event::Nothing
    }

    /// A rank whose count has stood still for too many looks.
    fn hung(&mut self) -> Option<(usize, Duration)> {
        for peer in &mut self.peers {
            let page = self.node.page(peer.nth);
            let beats = page.beats.load(Relaxed);
            if beats != peer.beats || page.phase.load(Acquire) != RUNS {
                (peer.beats, peer.still) = (beats, 0);
                continue;
            }
            peer.still += 1;
            let time = BEAT * peer.still;
            if time > self.patience.hang {
                return Some((peer.nth, time));
            }
        }
        None
    }

    fn fail(self, nth: usize, hangs: Option<Duration>) {
        let page = self.node.page(nth);
        let death = Death {
            rank: self.node.ranks[nth] as usize,
            pid: page.pid.load(Relaxed),
            hangs,
            last_urgent: self.node.last_note(nth),
        };
        if page.told.swap(1, SeqCst) == 0 {
            // In one write: what the launcher says meanwhile comes before or after it.
            let line = format!("upshift-mpi: {death}; the job ends\n");
            let _ = io::stderr().write_all(line.as_bytes());
        }
        let began = Instant::now();
        if let Some(job) = self.job.upgrade() {
            job.fail(death);
        }
        thread::sleep(self.patience.grace.saturating_sub(began.elapsed()));
        exit(STATUS);
    }
}

/// Ends the process without destructors: they would wait for ranks that are gone.
fn exit(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}
