//! Keeps the process registered with the machine's daemon, which *elevates* the threads of the
//! process with the most urgent work, that is, moves them into `SCHED_FIFO`. A thread, called the
//! keeper, registers all vCPUs again when another daemon has started. To *join* is to register all
//! vCPUs.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use upshift_board::client;
use upshift_board::{JoinError, Role, ThreadSpec, VcpuSpec};
use upshift_core::Domain;
use upshift_ring::Ring;

use super::dispatcher::{Announcer, Dispatcher};
use super::post::Expected;
use super::{Board, BoardStats, Post};
use crate::host::Linux;
use crate::time::timers::Timers;

/// Time between two attempts to join a daemon.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Time between two attempts shortly after a daemon has ended, which may be restarting with another
/// configuration or version.
const QUICK_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Time after the end of a daemon for which [`QUICK_RETRY_INTERVAL`] applies.
const QUICK_RETRY_TIME: Duration = Duration::from_secs(10);

/// Parameters of a [`Post`], the publisher of the levels of a vCPU.
pub(crate) struct PostRequest<'a> {
    pub(crate) domain: &'a Domain<Linux>,
    pub(crate) name: &'a str,
    pub(crate) index: usize,
    pub(crate) cpu: usize,
}

pub(crate) struct Membership {
    board: upshift_board::Board,
    socket: PathBuf,
    /// By the index of the vCPU.
    vcpus: Mutex<Vec<VcpuSpec>>,
    /// Threads of preemptible vCPUs that the keeper has yet to register.
    new_threads: Mutex<Vec<(usize, ThreadSpec)>>,
    /// Held while threads are reported to the daemon, so that these reports do not overtake each
    /// other.
    update_lock: Mutex<()>,
    joined: AtomicBool,
    /// Set while the process has joined a daemon that does not elevate, so that its vCPUs give way
    /// by themselves.
    cooperative: AtomicBool,
    /// [`BoardStats::rings`].
    rings: AtomicU64,
    /// [`BoardStats::announced`].
    announced: AtomicU64,
    /// [`BoardStats::gave_way`].
    gave_way: AtomicU64,
    keeper: Mutex<Option<JoinHandle<()>>>,
    ended: AtomicBool,
    /// Wakes the keeper.
    eventfd: OwnedFd,
}

impl Membership {
    /// Creates the membership, which has not joined yet, if a daemon is running. Returns `None`
    /// otherwise.
    ///
    /// # Errors
    /// `NotFound` with [`Board::Required`] if there is no daemon; the kernel's error if the board
    /// cannot be allocated.
    pub(crate) fn find(board: Board) -> io::Result<Option<Arc<Membership>>> {
        if board == Board::Off {
            return Ok(None);
        }
        let Some(socket) = client::find() else {
            return match board {
                Board::Required => Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!(
                        "no daemon listens at {}: start one with `upshift daemon`, or name its socket in {}",
                        client::SYSTEM_SOCKET,
                        client::SOCKET_VARIABLE
                    ),
                )),
                _ => Ok(None),
            };
        };
        // SAFETY: the call takes no pointers.
        let eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if eventfd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Some(Arc::new(Membership {
            board: upshift_board::Board::new()?,
            socket,
            vcpus: Mutex::default(),
            new_threads: Mutex::default(),
            update_lock: Mutex::default(),
            joined: AtomicBool::new(false),
            cooperative: AtomicBool::new(false),
            rings: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            gave_way: AtomicU64::new(0),
            keeper: Mutex::default(),
            ended: AtomicBool::new(false),
            // SAFETY: the descriptor was just created, and nothing else owns it.
            eventfd: unsafe { OwnedFd::from_raw_fd(eventfd) },
        })))
    }

    /// Creates the post of a vCPU that the calling thread serves. Also starts a dispatcher, unless
    /// the vCPU has a watcher, which then does the same work. Returns `None` if the board has no
    /// place for the vCPU.
    pub(crate) fn post(
        self: &Arc<Membership>,
        request: &PostRequest<'_>,
        ring: &Ring,
        timers: &Arc<Timers>,
        has_watcher: bool,
    ) -> io::Result<Option<Post>> {
        let PostRequest {
            domain,
            name,
            index,
            cpu,
        } = *request;
        let Some(vcpu) = self.board.vcpu(index) else {
            return Ok(None);
        };
        let watch = ring.watch()?;
        let expected = Arc::new(Expected::default());
        let announcer = Arc::new(Announcer {
            domain: domain.clone(),
            name: name.to_owned(),
            membership: self.clone(),
            index,
            cpu,
            vcpu: vcpu.clone(),
            watch: watch.clone(),
            timers: timers.clone(),
            expected: expected.clone(),
        });
        let mut threads = vec![ThreadSpec {
            tid: own_tid(),
            role: Role::Worker,
        }];
        let mut dispatcher = None;
        if !has_watcher {
            let (started, tid) = Dispatcher::start(announcer.clone())?;
            dispatcher = Some(started);
            let role = Role::Dispatcher;
            threads.push(ThreadSpec { tid, role });
        }
        let spec = VcpuSpec { cpu, threads };
        let mut vcpus = self.vcpus();
        while vcpus.len() < index {
            let threads = Vec::new();
            vcpus.push(VcpuSpec { cpu, threads });
        }
        if index < vcpus.len() {
            vcpus[index] = spec;
        } else {
            vcpus.push(spec);
        }
        drop(vcpus);
        let membership = self.clone();
        Ok(Some(Post::new(
            vcpu, watch, membership, announcer, dispatcher, expected,
        )))
    }

    fn vcpus(&self) -> MutexGuard<'_, Vec<VcpuSpec>> {
        lock(&self.vcpus)
    }

    /// Registers the calling thread, which is pinned to the CPU of vCPU `index`, as one of that
    /// vCPU's threads. The keeper reports the thread to the daemon; until then it is an ordinary
    /// thread.
    pub(crate) fn enlist(&self, index: usize, role: Role) {
        let tid = own_tid();
        lock(&self.new_threads).push((index, ThreadSpec { tid, role }));
        self.wake_keeper();
    }

    /// Adds the threads that were enlisted since the last call to the lists of their vCPUs. Returns
    /// these threads.
    fn take_new_threads(&self) -> Vec<(usize, ThreadSpec)> {
        let new_threads = std::mem::take(&mut *lock(&self.new_threads));
        let mut vcpus = self.vcpus();
        for &(index, thread) in &new_threads {
            if let Some(spec) = vcpus.get_mut(index) {
                spec.threads.push(thread);
            }
        }
        new_threads
    }

    fn register_new_threads(&self) {
        let _updating = lock(&self.update_lock);
        let new_threads = self.take_new_threads();
        if !new_threads.is_empty() && self.board.is_joined() {
            // If the daemon refuses a thread, the thread stays an ordinary one until the process
            // joins again.
            let _ = self.board.update(&new_threads, &[]);
        }
    }

    pub(crate) fn join(&self) -> Result<(), JoinError> {
        let _updating = lock(&self.update_lock);
        self.take_new_threads();
        let vcpus = self.vcpus().clone();
        let joined = self.board.join(&self.socket, &vcpus);
        self.set_joined(joined.as_ref().ok().map(|joined| joined.enforcing));
        joined.map(|_| ())
    }

    /// Withdraws the threads of vCPU `index` from the daemon.
    pub(crate) fn withdraw(&self, index: usize) {
        let _updating = lock(&self.update_lock);
        lock(&self.new_threads).retain(|(vcpu, _)| *vcpu != index);
        let threads = match self.vcpus().get_mut(index) {
            Some(spec) => std::mem::take(&mut spec.threads),
            None => return,
        };
        let tids: Vec<i32> = threads.iter().map(|thread| thread.tid).collect();
        // A failure is ignored, because the daemon notices by itself when the threads end.
        let _ = self.board.update(&[], &tids);
    }

    pub(crate) fn start_keeper(self: &Arc<Membership>, name: &str) -> io::Result<()> {
        let membership = self.clone();
        let thread = thread::Builder::new()
            .name(format!("{name}-board"))
            .stack_size(128 << 10)
            .spawn(move || membership.stay_joined())?;
        *lock(&self.keeper) = Some(thread);
        Ok(())
    }

    fn stay_joined(&self) {
        let mut lost_at: Option<Instant> = None;
        while !self.ended.load(Acquire) {
            let closed = self.board.closed();
            let expects_restart = lost_at.is_some_and(|time| time.elapsed() < QUICK_RETRY_TIME);
            self.sleep(
                closed.as_ref(),
                if expects_restart {
                    QUICK_RETRY_INTERVAL
                } else {
                    RETRY_INTERVAL
                },
            );
            if self.ended.load(Acquire) {
                continue;
            }
            self.register_new_threads();
            if self.board.is_joined() {
                continue;
            }
            if closed.is_some() {
                lost_at = Some(Instant::now());
                self.set_joined(None);
            }
            // A new daemon may already have replaced the old one. If this fails, because there is
            // no daemon yet or the daemon refuses, the loop retries later.
            let _ = self.join();
        }
    }

    /// Sleeps until the keeper is woken, the daemon has ended or, if there is no daemon, `interval`
    /// has passed.
    fn sleep(&self, closed: Option<&OwnedFd>, interval: Duration) {
        let mut fds = [Some(&self.eventfd), closed].map(|fd| libc::pollfd {
            fd: fd.map_or(-1, AsRawFd::as_raw_fd),
            events: libc::POLLIN,
            revents: 0,
        });
        let timeout = match closed {
            Some(_) => -1,
            None => interval.as_millis() as libc::c_int,
        };
        let mut count = 0u64;
        // SAFETY: `fds` is a local array of two entries, and `count` a local of eight bytes, which
        // match the lengths that are passed. The eventfd does not block. Errors are ignored,
        // because the caller then checks anyway.
        unsafe {
            libc::poll(fds.as_mut_ptr(), 2, timeout);
            libc::read(self.eventfd.as_raw_fd(), (&raw mut count).cast(), 8);
        }
    }

    fn wake_keeper(&self) {
        let one = 1u64;
        // SAFETY: `one` is a local of eight bytes. An error is ignored, because a full counter
        // wakes the keeper, too.
        unsafe { libc::write(self.eventfd.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Ends the keeper and leaves the daemon. When this function returns, no thread is elevated.
    pub(crate) fn end(&self) {
        self.ended.store(true, Release);
        self.wake_keeper();
        let keeper = lock(&self.keeper).take();
        if let Some(keeper) = keeper {
            // A keeper that panicked has reported it already.
            let _ = keeper.join();
        }
        self.board.leave();
        self.set_joined(None);
    }

    /// Records whether the joined daemon elevates threads. `enforcing` is `None` if no daemon is
    /// joined.
    fn set_joined(&self, enforcing: Option<bool>) {
        self.joined.store(enforcing.is_some(), Relaxed);
        self.cooperative.store(enforcing == Some(false), Relaxed);
    }

    #[inline]
    pub(super) fn is_cooperative(&self) -> bool {
        self.cooperative.load(Relaxed)
    }

    /// Counts a ring of the doorbell, which wakes the daemon.
    pub(super) fn count_doorbell(&self) {
        self.rings.fetch_add(1, Relaxed);
    }

    pub(super) fn count_announcement(&self) {
        self.announced.fetch_add(1, Relaxed);
    }

    /// Counts a time that a vCPU gave way to another process by itself.
    pub(super) fn count_giving_way(&self) {
        self.gave_way.fetch_add(1, Relaxed);
    }

    pub(crate) fn stats(&self) -> BoardStats {
        let joined = self.joined.load(Relaxed);
        BoardStats {
            joined,
            enforcing: joined && !self.is_cooperative(),
            rings: self.rings.load(Relaxed),
            announced: self.announced.load(Relaxed),
            gave_way: self.gave_way.load(Relaxed),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own_tid() -> i32 {
    // SAFETY: the call takes no pointers and cannot fail.
    unsafe { libc::gettid() }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("socket", &self.socket)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
