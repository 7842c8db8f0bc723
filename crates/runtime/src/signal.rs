//! Signals as futures: Ctrl-C, SIGTERM and the like.
//!
//! A [`Signal`], or several in [`Signals`], owns an eventfd that the handler writes;
//! waiting is a poll of it on the ring. From the first one of a kind on, the process no
//! longer dies of that signal.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use signal_hook_registry::SigId;
use upshift_ring::Fd;

use crate::io::Readiness;

/// The number of SIGINT (Ctrl-C).
pub const SIGINT: i32 = libc::SIGINT;
/// The number of SIGTERM, the polite request to end.
pub const SIGTERM: i32 = libc::SIGTERM;
/// The number of SIGHUP, by convention the request to read the configuration again.
pub const SIGHUP: i32 = libc::SIGHUP;
/// The number of SIGQUIT (Ctrl-\).
pub const SIGQUIT: i32 = libc::SIGQUIT;
/// The number of SIGUSR1, which means what the program says.
pub const SIGUSR1: i32 = libc::SIGUSR1;
/// The number of SIGUSR2, which means what the program says.
pub const SIGUSR2: i32 = libc::SIGUSR2;
/// The number of SIGCHLD: a child has ended or stopped.
pub const SIGCHLD: i32 = libc::SIGCHLD;
/// The number of SIGWINCH: the terminal has another size.
pub const SIGWINCH: i32 = libc::SIGWINCH;
/// The number of SIGALRM, of `alarm(2)`.
pub const SIGALRM: i32 = libc::SIGALRM;

/// What handler and waiter share.
#[derive(Debug)]
struct Shared {
    event: Fd,
    /// Bit *n* − 1: signal *n* has arrived.
    arrived: AtomicU64,
}

/// Waits for any of several signals, as often as it is asked to.
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
    /// Starts to listen for the signals with these numbers. What arrives from now on is
    /// seen by [`recv`](Signals::recv).
    ///
    /// # Errors
    /// For a number that is no signal or may not be caught (`SIGKILL`, `SIGSTOP`,
    /// `SIGSEGV`, …), and when no descriptor is left.
    pub fn new(numbers: impl IntoIterator<Item = i32>) -> io::Result<Signals> {
        // SAFETY: no pointers.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, without another owner.
        let event = Fd::new(unsafe { OwnedFd::from_raw_fd(event) });
        let mut signals = Signals {
            shared: Arc::new(Shared {
                event,
                arrived: AtomicU64::new(0),
            }),
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
            let one = 1u64;
            // SAFETY: `write` is async-signal-safe, and the descriptor is kept
            // open by the closure. A full counter is as good as one more.
            unsafe { libc::write(shared.event.as_raw_fd(), (&raw const one).cast(), 8) };
        };
        // SAFETY: the action is async-signal-safe and does not panic.
        self.ids
            .push(unsafe { signal_hook_registry::register(number, action) }?);
        Ok(())
    }

    /// Waits for the next arrival and says which signal it was; several of one number
    /// that came at once count as one, and of several numbers the lowest comes first.
    /// Dropping the future loses none.
    ///
    /// # Errors
    /// Outside a runtime.
    pub async fn recv(&mut self) -> io::Result<i32> {
        let shared = &*self.shared;
        let mut readable = Readiness::readable();
        std::future::poll_fn(|cx| {
            readable.poll_io(cx, &shared.event, |event| {
                let mut count = 0u64;
                // SAFETY: the pointer is to a local of the size given. Read before the
                // bits, which are set before it is written: what is missed here is
                // announced again.
                unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
                shared
                    .take()
                    .ok_or_else(|| io::ErrorKind::WouldBlock.into())
            })
        })
        .await
    }
}

impl Shared {
    /// The lowest signal that has arrived.
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
    }
}

/// Waits for one signal, as often as it is asked to.
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
    /// Starts to listen for the signal `number`. What arrives from now on is seen
    /// by the next [`recv`](Signal::recv).
    ///
    /// # Errors
    /// As [`Signals::new`].
    pub fn new(number: i32) -> io::Result<Signal> {
        Ok(Signal {
            signals: Signals::new([number])?,
        })
    }

    /// Waits for the next arrival; several that came at once count as one.
    ///
    /// # Errors
    /// Outside a runtime.
    pub async fn recv(&mut self) -> io::Result<()> {
        self.signals.recv().await.map(drop)
    }
}

/// Waits for Ctrl-C (SIGINT).
///
/// # Errors
/// As [`Signal::new`].
pub async fn ctrl_c() -> io::Result<()> {
    Signal::new(SIGINT)?.recv().await
}

/// Waits for SIGTERM, the polite request to end.
///
/// # Errors
/// As [`Signal::new`].
pub async fn terminate() -> io::Result<()> {
    Signal::new(SIGTERM)?.recv().await
}
