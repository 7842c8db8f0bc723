//! Signals as futures: Ctrl-C, SIGTERM and the like.
//!
//! A [`Signal`] owns an eventfd that the handler writes; waiting is a read of it
//! on the ring. From the first `Signal` of a kind on, the process no longer dies
//! of that signal.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use signal_hook_registry::SigId;
use upshift_ring::{Fd, op};

use crate::context;

/// The number of SIGINT (Ctrl-C).
pub const SIGINT: i32 = libc::SIGINT;
/// The number of SIGTERM, the polite request to end.
pub const SIGTERM: i32 = libc::SIGTERM;
/// The number of SIGHUP, by convention the request to read the configuration again.
pub const SIGHUP: i32 = libc::SIGHUP;

/// Waits for a signal, as often as it is asked to.
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
    event: Fd,
    id: SigId,
}

impl Signal {
    /// Starts to listen for the signal `number`. What arrives from now on is seen
    /// by the next [`recv`](Signal::recv).
    ///
    /// # Errors
    /// For a number that is no signal or may not be caught (`SIGKILL`, `SIGSTOP`,
    /// `SIGSEGV`, …), and when no descriptor is left.
    pub fn new(number: i32) -> io::Result<Signal> {
        if signal_hook_registry::FORBIDDEN.contains(&number) || !(1..=64).contains(&number) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("signal {number} cannot be waited for"),
            ));
        }
        // SAFETY: no pointers.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, owned by nobody else.
        let event = Fd::new(unsafe { OwnedFd::from_raw_fd(event) });
        let target = event.clone();
        let action = move || {
            let one = 1u64;
            // SAFETY: `write` is async-signal-safe, and the descriptor is kept
            // open by the closure. A full counter is as good as one more.
            unsafe { libc::write(target.as_raw_fd(), (&raw const one).cast(), 8) };
        };
        // SAFETY: the action is async-signal-safe and does not panic.
        let id = unsafe { signal_hook_registry::register(number, action) }?;
        Ok(Signal { event, id })
    }

    /// Waits for the next arrival; several that came at once count as one.
    ///
    /// # Errors
    /// Outside a runtime.
    pub async fn recv(&mut self) -> io::Result<()> {
        loop {
            let mut count = 0u64;
            // SAFETY: the pointer is to a local of the size given.
            let got = unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) };
            if got == 8 {
                return Ok(());
            }
            let readable = context::try_with(|worker| {
                let readable = op::PollAdd::new(self.event.clone(), libc::POLLIN as u32);
                worker.start(readable)
            })?;
            readable.await?;
        }
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        signal_hook_registry::unregister(self.id);
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
