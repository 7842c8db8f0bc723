//! Futures that wait for signals: Ctrl-C, SIGTERM and the like. Once the program has listened for a
//! signal, the signal no longer ends the process.
//!
//! The signal handler records the signal and writes to an eventfd. A thread of the process, which
//! starts with the first [`Signals`], reads the eventfd and wakes the waiters.
//!
//! A waiter has no operation in the vCPU's ring (io_uring or its substitute), because such an
//! operation would stay there as long as the program runs, usually at an urgent level. The level of
//! a completion is not known before the vCPU has processed the completion. So every completion
//! would count as urgent (`docs/preemption.md`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;

use signal_hook_registry::SigId;

use crate::notice::no_thread;
use crate::preempt;
use crate::sync::{Lock, LockSafeWaker, register, wake};

/// The number of SIGINT (Ctrl-C).
pub const SIGINT: i32 = libc::SIGINT;
/// The number of SIGTERM, the polite request to end.
pub const SIGTERM: i32 = libc::SIGTERM;
/// The number of SIGHUP, by convention the request to read the configuration again.
pub const SIGHUP: i32 = libc::SIGHUP;
/// The number of SIGQUIT (Ctrl-\).
pub const SIGQUIT: i32 = libc::SIGQUIT;
/// The number of SIGUSR1, defined by the program.
pub const SIGUSR1: i32 = libc::SIGUSR1;
/// The number of SIGUSR2, defined by the program.
pub const SIGUSR2: i32 = libc::SIGUSR2;
/// The number of SIGCHLD: a child has ended or stopped.
pub const SIGCHLD: i32 = libc::SIGCHLD;
/// The number of SIGWINCH: the size of the terminal has changed.
pub const SIGWINCH: i32 = libc::SIGWINCH;
/// The number of SIGALRM, of `alarm(2)`.
pub const SIGALRM: i32 = libc::SIGALRM;

/// State that a listener shares with the signal handler and the signal thread.
#[derive(Debug)]
struct Shared {
    eventfd: Arc<OwnedFd>,
    /// Bit *n* − 1 is set if signal *n* has arrived.
    arrived: AtomicU64,
    waiter: Lock<Option<Waker>>,
}

/// The listeners of the process, and the eventfd of the signal thread.
struct Hub {
    eventfd: Arc<OwnedFd>,
    listeners: Vec<Weak<Shared>>,
}

/// `None` until the thread has been started.
static HUB: Mutex<Option<Hub>> = Mutex::new(None);

impl Hub {
    fn start() -> io::Result<Hub> {
        // SAFETY: `eventfd` takes no pointer.
        let eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if eventfd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just created this descriptor; nothing else owns it.
        let eventfd = Arc::new(unsafe { OwnedFd::from_raw_fd(eventfd) });
        let thread_eventfd = eventfd.clone();
        thread::Builder::new()
            .name("upshift-signals".into())
            .stack_size(64 << 10)
            .spawn(move || {
                preempt::schedule_as_waiter();
                while wait_for_handler(&thread_eventfd) {
                    wake_all();
                }
            })
            .map_err(|error| no_thread("signals", &error))?;
        let listeners = Vec::new();
        Ok(Hub { eventfd, listeners })
    }

    fn add() -> io::Result<Arc<Shared>> {
        let mut hub = hub();
        let hub = match &mut *hub {
            Some(hub) => hub,
            empty => empty.insert(Hub::start()?),
        };
        let shared = Arc::new(Shared {
            eventfd: hub.eventfd.clone(),
            arrived: AtomicU64::new(0),
            waiter: Lock::new(None),
        });
        hub.listeners
            .retain(|listener| listener.strong_count() != 0);
        hub.listeners.push(Arc::downgrade(&shared));
        Ok(shared)
    }
}

fn hub() -> MutexGuard<'static, Option<Hub>> {
    HUB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a handler has written to the eventfd. Returns false if the read fails.
fn wait_for_handler(eventfd: &OwnedFd) -> bool {
    let mut count = 0u64;
    loop {
        // SAFETY: `count` is a local of 8 bytes, so it is valid for the write of 8 bytes.
        let result = unsafe { libc::read(eventfd.as_raw_fd(), (&raw mut count).cast(), 8) };
        match result {
            8 => return true,
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
}

fn wake_all() {
    let listeners: Vec<_> = match &*hub() {
        Some(hub) => hub.listeners.iter().filter_map(Weak::upgrade).collect(),
        None => return,
    };
    for listener in listeners {
        if listener.arrived.load(Ordering::Acquire) == 0 {
            continue;
        }
        let waiter = listener.waiter.lock().take();
        if let Some(waiter) = waiter {
            wake(waiter);
        }
    }
}

/// A listener for any of several signals.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use upshift::signal::{SIGHUP, SIGINT, SIGTERM, Signals};
///
/// let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
/// while signals.recv().await? == SIGHUP {
///     println!("reloading");
/// }
/// println!("ending");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Signals {
    shared: Arc<Shared>,
    ids: Vec<SigId>,
}

impl Signals {
    /// Starts to listen for the signals with these numbers. [`recv`](Signals::recv) returns every
    /// signal that arrives from now on.
    ///
    /// # Errors
    /// For a number that is not a signal or may not be caught (`SIGKILL`, `SIGSTOP`, `SIGSEGV`, …),
    /// and when no descriptor or thread is left for the first listener.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::Command;
    /// use upshift::signal::{SIGUSR1, SIGUSR2, Signals};
    ///
    /// let mut signals = Signals::new([SIGUSR1, SIGUSR2])?;
    /// Command::new("sh").args(["-c", "kill -USR2 $PPID"]).status().await?;
    /// assert_eq!(signals.recv().await?, SIGUSR2);
    /// assert!(Signals::new([9]).is_err()); // SIGKILL cannot be caught.
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn new(numbers: impl IntoIterator<Item = i32>) -> io::Result<Signals> {
        let mut signals = Signals {
            shared: Hub::add()?,
            ids: Vec::new(),
        };
        for number in numbers {
            signals.listen(number)?;
        }
        Ok(signals)
    }

    fn listen(&mut self, number: i32) -> io::Result<()> {
        if signal_hook_registry::FORBIDDEN.contains(&number) || !(1..=64).contains(&number) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("signal {number} cannot be waited for"),
            ));
        }
        let shared = self.shared.clone();
        let action = move || {
            shared
                .arrived
                .fetch_or(1 << (number - 1), Ordering::Release);
            let increment = 1u64;
            // SAFETY: `write` is async-signal-safe, and the closure keeps the descriptor
            // open. A full counter wakes the thread too.
            unsafe { libc::write(shared.eventfd.as_raw_fd(), (&raw const increment).cast(), 8) };
        };
        // SAFETY: the action is async-signal-safe and does not panic.
        self.ids
            .push(unsafe { signal_hook_registry::register(number, action) }?);
        Ok(())
    }

    /// Waits for the next signal and returns its number. Several arrivals of one number count as
    /// one arrival, and the lowest number comes first. Any executor can poll the future.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a signal.
    ///
    /// # Errors
    /// None today.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::Command;
    /// use upshift::signal::{SIGUSR1, SIGUSR2, Signals};
    ///
    /// let mut signals = Signals::new([SIGUSR1, SIGUSR2])?;
    /// let script = "kill -USR1 $PPID; kill -USR2 $PPID";
    /// Command::new("sh").args(["-c", script]).status().await?;
    /// let mut numbers = [signals.recv().await?, signals.recv().await?];
    /// numbers.sort();
    /// assert_eq!(numbers, [SIGUSR1, SIGUSR2]);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn recv(&mut self) -> io::Result<i32> {
        let shared = &*self.shared;
        std::future::poll_fn(|cx| shared.poll(cx)).await
    }
}

impl Shared {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<i32>> {
        if let Some(number) = self.take() {
            return Poll::Ready(Ok(number));
        }
        let mut waker = LockSafeWaker::new(cx.waker());
        let old_waker = register(&mut self.waiter.lock(), &mut waker);
        drop(old_waker);
        // The signals are checked once more, because a signal that arrived before the waker was
        // stored has found no waiter.
        match self.take() {
            Some(number) => Poll::Ready(Ok(number)),
            None => Poll::Pending,
        }
    }

    /// Takes the lowest signal that has arrived.
    fn take(&self) -> Option<i32> {
        let arrived = self.arrived.load(Ordering::Acquire);
        let lowest = arrived & arrived.wrapping_neg();
        self.arrived.fetch_and(!lowest, Ordering::AcqRel);
        (lowest != 0).then(|| lowest.trailing_zeros() as i32 + 1)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            signal_hook_registry::unregister(id);
        }
        // The waker is dropped here, because the signal thread may be the last owner of the shared
        // state and must not drop the waker.
        let waiter = self.shared.waiter.lock().take();
        drop(waiter);
    }
}

/// A listener for one signal.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use upshift::signal::{SIGHUP, Signal};
///
/// let mut hangups = Signal::new(SIGHUP)?;
/// loop {
///     hangups.recv().await?;
///     println!("reloading");
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Signal {
    signals: Signals,
}

impl Signal {
    /// Starts to listen for the signal `number`. [`recv`](Signal::recv) returns for every arrival
    /// from now on.
    ///
    /// # Errors
    /// The errors of [`Signals::new`].
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::Command;
    /// use upshift::signal::{SIGUSR1, Signal};
    ///
    /// let mut signal = Signal::new(SIGUSR1)?;
    /// Command::new("sh").args(["-c", "kill -USR1 $PPID"]).status().await?;
    /// signal.recv().await?;
    /// assert!(Signal::new(0).is_err()); // There is no signal 0.
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn new(number: i32) -> io::Result<Signal> {
        Ok(Signal {
            signals: Signals::new([number])?,
        })
    }

    /// Waits for the next arrival; several arrivals between two calls count as one.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a signal.
    ///
    /// # Errors
    /// The errors of [`Signals::recv`].
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::Command;
    /// use upshift::signal::{SIGHUP, Signal};
    ///
    /// let mut hangups = Signal::new(SIGHUP)?;
    /// for _ in 0..2 {
    ///     Command::new("sh").args(["-c", "kill -HUP $PPID"]).status().await?;
    ///     hangups.recv().await?; // Does not end the process.
    /// }
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn recv(&mut self) -> io::Result<()> {
        self.signals.recv().await.map(drop)
    }
}

/// Waits for Ctrl-C (SIGINT). From the first poll on, Ctrl-C does not end the process.
///
/// # Cancellation safety
/// A dropped future stops listening, so arrivals before the next call are lost. Use [`Signal`] for
/// repeated waits.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// upshift::signal::ctrl_c().await?;
/// println!("ending");
/// # Ok(()) }
/// ```
///
/// # Errors
/// The errors of [`Signal::new`].
pub async fn ctrl_c() -> io::Result<()> {
    Signal::new(SIGINT)?.recv().await
}

/// Waits for SIGTERM, the polite request to end.
///
/// # Cancellation safety
/// Like that of [`ctrl_c`].
///
/// # Errors
/// The errors of [`Signal::new`].
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::{process::Command, signal, task};
///
/// let waiter = task::spawn(signal::terminate());
/// task::yield_now().await; // The coroutine begins to listen.
/// Command::new("sh").args(["-c", "kill -TERM $PPID"]).status().await?;
/// assert!(waiter.await?.is_ok());
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub async fn terminate() -> io::Result<()> {
    Signal::new(SIGTERM)?.recv().await
}
