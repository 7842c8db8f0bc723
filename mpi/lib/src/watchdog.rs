//! Runs the watchdog thread, which sleeps until a rank of this node dies or hangs, or the job ends.
//!
//! The watchdog is a thread and not a coroutine, because it must also act while this rank computes
//! or blocks in MPI. It learns of deaths on this host by pidfds, and of deaths on other hosts by
//! TCP connections (`lifeline.rs`). A coroutine of level 0 (the most urgent) counts heartbeats in
//! the rank's shared page, which show whether a rank hangs. The watchdog counts its own checks
//! since the last heartbeat, so a job that is stopped and continued as a whole does not appear to
//! hang.
//!
//! When a rank dies, one survivor of the node reports it, with its last level-0 request. Every
//! pending operation fails with [`Error::Died`](crate::Error::Died). After a grace period, in which
//! a server can still refuse requests, each survivor exits with status [`EXIT_STATUS`]. `mpirun`
//! notices the death at the same time and sends SIGTERM to all ranks. A rank that gets SIGTERM
//! therefore first looks for a death, for a quarter of the grace period. A second later `mpirun`
//! sends SIGKILL. The watchdog never calls MPI, because no MPI function is safe after a rank has
//! died.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Death;
use crate::job::Job;
use crate::lifeline::{Lifeline, LineState};
use crate::node::{Node, PHASE_AWAY, PHASE_RUNNING};

/// Exit status of a rank whose job has failed.
pub const EXIT_STATUS: i32 = 70;

/// Time between two heartbeats, and between two checks of the heartbeats.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimits {
    /// Time without a heartbeat after which a rank counts as hung.
    pub(crate) hang: Duration,
    /// Time for which the survivors continue after a death.
    pub(crate) grace: Duration,
}

/// The handle of the watchdog's thread; dropping it ends the thread.
pub(crate) struct Watchdog {
    stop: Arc<OwnedFd>,
    thread: Option<thread::JoinHandle<()>>,
    signal: signal_hook_registry::SigId,
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: the call returns a new descriptor or an error.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call returns a new descriptor or an error.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as RawFd)),
        }
    }
}

fn signal_eventfd(event: RawFd) {
    let one = 1u64;
    // SAFETY: writes the eight bytes of `one` to an eventfd; `write` is async-signal-safe.
    unsafe { libc::write(event, (&raw const one).cast(), 8) };
}

impl Watchdog {
    /// Starts the thread. All ranks of the node must have opened their pages.
    pub(crate) fn start(
        job: &Arc<Job>,
        limits: TimeLimits,
        lifelines: Vec<Lifeline>,
    ) -> io::Result<Watchdog> {
        let (stop, term) = (Arc::new(eventfd()?), Arc::new(eventfd()?));
        let node = job.node.clone();
        let mut peers = Vec::new();
        for index in 0..node.ranks.len() {
            let page = node.page(index);
            let fd = if node.is_own_page(index) {
                None
            } else {
                Some(pidfd(page.pid.load(Relaxed))?)
            };
            peers.push(Peer {
                index,
                fd,
                heartbeats: page.heartbeats.load(Relaxed),
                missed_checks: 0,
            });
        }
        let on_signal = term.clone();
        // SAFETY: the handler only writes to an eventfd, which it keeps open.
        let signal = unsafe {
            signal_hook_registry::register(libc::SIGTERM, move || {
                signal_eventfd(on_signal.as_raw_fd())
            })?
        };
        let observer = WatchdogThread {
            job: Arc::downgrade(job),
            node,
            limits,
            peers,
            lifelines,
            stop: stop.clone(),
            term,
        };
        let thread = thread::Builder::new()
            .name("upshift-mpi-watch".into())
            .spawn(move || observer.run())?;
        Ok(Watchdog {
            stop,
            thread: Some(thread),
            signal,
        })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        signal_eventfd(self.stop.as_raw_fd());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        signal_hook_registry::unregister(self.signal);
    }
}

/// A rank of this node, as the watchdog sees it.
struct Peer {
    index: usize,
    fd: Option<OwnedFd>,
    heartbeats: u64,
    missed_checks: u32,
}

struct WatchdogThread {
    job: Weak<Job>,
    node: Arc<Node>,
    limits: TimeLimits,
    peers: Vec<Peer>,
    lifelines: Vec<Lifeline>,
    stop: Arc<OwnedFd>,
    term: Arc<OwnedFd>,
}

enum Event {
    Stop,
    Term,
    Died(Death),
    Nothing,
}

impl WatchdogThread {
    fn run(mut self) {
        loop {
            let start_time = Instant::now();
            let event = self.wait(HEARTBEAT_INTERVAL);
            let is_full_interval = start_time.elapsed() >= HEARTBEAT_INTERVAL;
            match event {
                Event::Stop => {
                    if self.node.own_page().phase.load(Acquire) == PHASE_AWAY {
                        self.lifelines.iter().for_each(Lifeline::leave);
                    }
                    return;
                }
                Event::Died(death) => return self.fail(death),
                // `mpirun` often notices a death before the pidfd does, so look for one before
                // exiting.
                Event::Term => {
                    let deadline = Instant::now() + self.limits.grace / 4;
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
                Event::Nothing if is_full_interval => {
                    if let Some(death) = self.find_lost_or_hung() {
                        return self.fail(death);
                    }
                }
                Event::Nothing => {}
            }
        }
    }

    fn wait(&mut self, limit: Duration) -> Event {
        let eventfds = [self.stop.as_raw_fd(), self.term.as_raw_fd()];
        let pidfds = self
            .peers
            .iter()
            .map(|peer| peer.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd));
        let lifelines = self.lifelines.iter().map(Lifeline::fd);
        let mut polled: Vec<libc::pollfd> = eventfds
            .into_iter()
            .chain(pidfds)
            .chain(lifelines)
            .map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let milliseconds = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the pointer and the length describe `polled`.
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
        let (pidfds, lifelines) = polled[2..].split_at(self.peers.len());
        for position in (0..pidfds.len()).filter(|position| pidfds[*position].revents != 0) {
            // A pidfd stays readable, so it is not polled again.
            self.peers[position].fd = None;
            let index = self.peers[position].index;
            if let Some((rank, pid)) = self.node.lost_rank() {
                // The neighbour may have ended because the job fails, so the lost rank is reported
                // as the cause.
                return Event::Died(Death::alone(rank, pid));
            }
            if self.node.page(index).phase.load(Acquire) == PHASE_RUNNING {
                return Event::Died(self.death(index, None));
            }
        }
        if let Some(position) = lifelines.iter().position(|entry| entry.revents != 0) {
            let state = self.lifelines[position].read_state();
            if state != LineState::Open {
                let line = self.lifelines.swap_remove(position);
                if state == LineState::Lost {
                    self.node.report_lost_rank(line.rank, line.pid);
                    let death = Death::alone(line.rank, line.pid);
                    print(&death);
                    return Event::Died(death);
                }
            }
        }
        if polled[1].revents != 0 {
            return Event::Term;
        }
        Event::Nothing
    }

    /// Returns the death of a rank whose heartbeat has not changed for too many checks, or whose
    /// loss a neighbour has recorded.
    fn find_lost_or_hung(&mut self) -> Option<Death> {
        if let Some((rank, pid)) = self.node.lost_rank() {
            return Some(Death::alone(rank, pid));
        }
        for peer in &mut self.peers {
            let page = self.node.page(peer.index);
            let heartbeats = page.heartbeats.load(Relaxed);
            if heartbeats != peer.heartbeats || page.phase.load(Acquire) != PHASE_RUNNING {
                (peer.heartbeats, peer.missed_checks) = (heartbeats, 0);
                continue;
            }
            peer.missed_checks += 1;
            let (index, time) = (peer.index, HEARTBEAT_INTERVAL * peer.missed_checks);
            if time > self.limits.hang {
                return Some(self.death(index, Some(time)));
            }
        }
        None
    }

    /// Returns the death of a rank of this node, with its last request. The first survivor that
    /// calls this function prints the death.
    fn death(&self, index: usize, hangs: Option<Duration>) -> Death {
        let page = self.node.page(index);
        let death = Death {
            rank: self.node.ranks[index] as usize,
            pid: page.pid.load(Relaxed),
            hangs,
            last_urgent: self.node.last_request(index),
            was_alone: false,
        };
        if page.death_reported.swap(1, SeqCst) == 0 {
            print(&death);
        }
        death
    }

    fn fail(self, death: Death) {
        let start_time = Instant::now();
        if let Some(job) = self.job.upgrade() {
            job.fail(death);
        }
        thread::sleep(self.limits.grace.saturating_sub(start_time.elapsed()));
        exit(EXIT_STATUS);
    }
}

/// Prints a death to standard error in one write, so that the launcher's text does not interrupt
/// it.
fn print(death: &Death) {
    let line = format!("upshift-mpi: {death}; the job ends\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Ends the process without running destructors, which would wait for ranks that are gone.
fn exit(status: i32) -> ! {
    // SAFETY: `_exit` has no requirements.
    unsafe { libc::_exit(status) }
}
