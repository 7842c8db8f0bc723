//! The watchdog: a thread that sleeps until a rank of this node dies, hangs, or the job is ended.
//!
//! It is a thread rather than a coroutine, because it must act also while this rank computes or is
//! stuck in MPI. Deaths are reported by pidfds, and from other hosts by lifelines (`lifeline.rs`).
//! Hangs show by heartbeats, which a coroutine of level 0 counts in the rank's page. The watchdog
//! counts its own checks since the heartbeat moved, so a job that is stopped and continued as a
//! whole has not hung.
//!
//! When a rank dies, one survivor of the node names it, with its last level-0 request. Every
//! pending operation fails with [`Error::Died`](crate::Error::Died). After a grace period, in which
//! a server can still refuse requests, each survivor exits with status [`STATUS`]. `mpirun` notices
//! the death at the same time and sends SIGTERM to all ranks, which therefore waits for the grace
//! period, too; it sends SIGKILL a second later. No call of MPI is made: none of them is safe with
//! a rank gone.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Death;
use crate::job::Job;
use crate::lifeline::{Lifeline, Pulled};
use crate::node::{AWAY, Node, RUNS};

/// Exit status of a rank whose job has failed.
pub const STATUS: i32 = 70;

/// Time between two heartbeats, and between two checks of them.
pub(crate) const BEAT: Duration = Duration::from_millis(250);

/// The time limits of the watchdog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) hang: Duration,
    pub(crate) grace: Duration,
}

/// The handle of the watchdog's thread, which ends when this is dropped.
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
    /// Starts the thread. All ranks of the node have their pages.
    pub(crate) fn start(
        job: &Arc<Job>,
        patience: Patience,
        lifelines: Vec<Lifeline>,
    ) -> io::Result<Watch> {
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
            lifelines,
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
    lifelines: Vec<Lifeline>,
    stop: Arc<OwnedFd>,
    term: Arc<OwnedFd>,
}

/// The end of a wait.
enum Event {
    Stop,
    Term,
    Died(Death),
    Nothing,
}

impl Watcher {
    fn run(mut self) {
        loop {
            let looked = Instant::now();
            let event = self.wait(BEAT);
            let whole = looked.elapsed() >= BEAT;
            match event {
                Event::Stop => {
                    if self.node.mine().phase.load(Acquire) == AWAY {
                        self.lifelines.iter().for_each(Lifeline::leave);
                    }
                    return;
                }
                Event::Died(death) => return self.fail(death),
                // A rank may have died, too: `mpirun` is often faster than the pidfd.
                Event::Term => {
                    let deadline = Instant::now() + self.patience.grace / 4;
                    while Instant::now() < deadline {
                        match self.wait(Duration::from_millis(10)) {
                            Event::Died(death) => return self.fail(death),
                            Event::Stop => return,
                            _ => {}
                        }
                        thread::sleep(Duration::from_millis(5));
                    }
                    exit(128 + libc::SIGTERM);
                }
                Event::Nothing if whole => {
                    if let Some(death) = self.hung() {
                        return self.fail(death);
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
        let far = self.lifelines.iter().map(Lifeline::fd);
        let mut polled: Vec<libc::pollfd> = own
            .into_iter()
            .chain(theirs)
            .chain(far)
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
        let (near, far) = polled[2..].split_at(self.peers.len());
        for at in (0..near.len()).filter(|at| near[*at].revents != 0) {
            // The descriptor is needed once.
            self.peers[at].fd = None;
            let nth = self.peers[at].nth;
            if let Some((rank, pid)) = self.node.missed() {
                // The neighbour has ended with the job.
                return Event::Died(Death::alone(rank, pid));
            }
            if self.node.page(nth).phase.load(Acquire) == RUNS {
                return Event::Died(self.death(nth, None));
            }
        }
        if let Some(at) = far.iter().position(|entry| entry.revents != 0) {
            let pulled = self.lifelines[at].pulled();
            if pulled != Pulled::Holds {
                let line = self.lifelines.swap_remove(at);
                if pulled == Pulled::Missed {
                    self.node.miss(line.rank, line.pid);
                    let death = Death::alone(line.rank, line.pid);
                    say(&death);
                    return Event::Died(death);
                }
            }
        }
        if polled[1].revents != 0 {
            return Event::Term;
        }
        Event::Nothing
    }

    /// Returns the death of a rank whose heartbeat has stood still for too many checks, or whose
    /// loss a neighbour has recorded.
    fn hung(&mut self) -> Option<Death> {
        if let Some((rank, pid)) = self.node.missed() {
            return Some(Death::alone(rank, pid));
        }
        for peer in &mut self.peers {
            let page = self.node.page(peer.nth);
            let beats = page.beats.load(Relaxed);
            if beats != peer.beats || page.phase.load(Acquire) != RUNS {
                (peer.beats, peer.still) = (beats, 0);
                continue;
            }
            peer.still += 1;
            let (nth, time) = (peer.nth, BEAT * peer.still);
            if time > self.patience.hang {
                return Some(self.death(nth, Some(time)));
            }
        }
        None
    }

    /// Returns the death of a rank of this node, with its last request. One of the survivors names
    /// it.
    fn death(&self, nth: usize, hangs: Option<Duration>) -> Death {
        let page = self.node.page(nth);
        let death = Death {
            rank: self.node.ranks[nth] as usize,
            pid: page.pid.load(Relaxed),
            hangs,
            last_urgent: self.node.last_note(nth),
            was_alone: false,
        };
        if page.told.swap(1, SeqCst) == 0 {
            say(&death);
        }
        death
    }

    fn fail(self, death: Death) {
        let began = Instant::now();
        if let Some(job) = self.job.upgrade() {
            job.fail(death);
        }
        thread::sleep(self.patience.grace.saturating_sub(began.elapsed()));
        exit(STATUS);
    }
}

/// Names a rank, in one write, so that the launcher's own text comes before or after it.
fn say(death: &Death) {
    let line = format!("upshift-mpi: {death}; the job ends\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Ends the process without destructors: they would wait for ranks that are gone.
fn exit(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}
