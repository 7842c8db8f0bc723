//! Chooses the driver that carries out the I/O of a runtime: io_uring, or *readiness*, that is,
//! epoll with non-blocking calls.

use std::fmt;
use std::io;
use std::sync::Once;

use upshift_core::Level;
use upshift_ring::{Driver, Job, Mode, Offload, SetupError, probe_ring};

use crate::blocking::pool::{self, Pool, Refused};
use crate::notice::{errno_of, notice};

/// Environment variable that names the driver.
const VARIABLE: &str = "UPSHIFT_DRIVER";

/// The chosen driver, which is never `Auto`, and the reason for the choice.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) driver: Driver,
    why: String,
    /// Set if neither the program nor the environment requested a driver. Only then may readiness
    /// replace io_uring.
    is_automatic: bool,
}

impl Choice {
    /// Chooses the driver that the program requests, or else the one that the environment requests,
    /// or else the best one that works.
    ///
    /// # Errors
    /// [`SetupError`] if io_uring does not work and readiness is not allowed or would not help;
    /// `InvalidInput` if the environment names an unknown driver.
    pub(crate) fn new(requested: Driver) -> io::Result<Choice> {
        let (requested, origin) = match requested {
            Driver::Auto => driver_from_environment()?,
            driver => (driver, "by the program"),
        };
        match requested {
            Driver::Readiness => Ok(Choice {
                driver: requested,
                why: format!("requested {origin}"),
                is_automatic: false,
            }),
            Driver::Ring => {
                probe_ring()?;
                Ok(Choice {
                    driver: requested,
                    why: format!("requested {origin}"),
                    is_automatic: false,
                })
            }
            Driver::Auto => match probe_ring() {
                Ok(()) => Ok(Choice {
                    driver: Driver::Ring,
                    why: "it works here".into(),
                    is_automatic: true,
                }),
                Err(error) => Choice::without_ring(&error).ok_or(error),
            },
        }
    }

    /// Returns readiness as the replacement of io_uring, if it may be used, after `error` has
    /// prevented a runtime on io_uring. Such an error can follow a successful probe, because the
    /// probe's ring is small, and may work where the vCPUs' rings do not.
    pub(crate) fn fallback(&self, error: &io::Error) -> Option<Choice> {
        let may_replace =
            self.is_automatic && self.driver == Driver::Ring && setup_error(error).is_some();
        may_replace.then(|| Choice::without_ring(error)).flatten()
    }

    /// Falls back to readiness, and prints a notice once per process. Returns `None` if the process
    /// has run out of file descriptors.
    fn without_ring(error: &io::Error) -> Option<Choice> {
        // Readiness would not help, because it needs descriptors, too.
        let has_run_out = |setup: &SetupError| matches!(setup.errno(), libc::EMFILE | libc::ENFILE);
        if setup_error(error).is_some_and(has_run_out) {
            return None;
        }
        let why = format!("io_uring does not work here: {error}");
        static REPORTED: Once = Once::new();
        REPORTED.call_once(|| {
            notice(format_args!(
                "{why}. I/O uses epoll, and threads for files; {VARIABLE}=readiness silences this message"
            ));
        });
        Some(Choice {
            driver: Driver::Readiness,
            why,
            is_automatic: true,
        })
    }
}

fn driver_from_environment() -> io::Result<(Driver, &'static str)> {
    let origin = "by the environment";
    let Some(word) = std::env::var_os(VARIABLE) else {
        return Ok((Driver::Auto, origin));
    };
    match word.to_str() {
        Some("" | "auto") => Ok((Driver::Auto, origin)),
        Some("ring") => Ok((Driver::Ring, origin)),
        Some("readiness") => Ok((Driver::Readiness, origin)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{VARIABLE} must be auto, ring or readiness, not {}",
                word.display()
            ),
        )),
    }
}

fn setup_error(error: &io::Error) -> Option<&SetupError> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// The driver of a runtime and its mode, the reason for the choice, and the gain that a better
/// driver would bring. [`Runtime::report`](crate::Runtime::report) returns it.
///
/// `Display` writes one line for the driver and its mode, one for the reason, and one for the gain,
/// if there is any.
///
/// ```
/// let runtime = upshift::Runtime::builder().vcpus(1).build()?;
/// let report = runtime.report();
/// assert_ne!(report.driver(), upshift::Driver::Auto);
/// assert!(report.to_string().starts_with("driver: "));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Report {
    choice: Choice,
    mode: Mode,
}

impl Report {
    pub(crate) fn new(choice: Choice, mode: Mode) -> Report {
        Report { choice, mode }
    }

    /// Returns the driver: `Ring` or `Readiness`.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.choice.driver
    }

    /// Returns the mode in which the driver runs.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the reason for the choice, in words.
    #[must_use]
    pub fn why(&self) -> &str {
        &self.choice.why
    }

    /// Returns the gain that a newer kernel or another driver would bring; `None` if the driver is
    /// the best one.
    #[must_use]
    pub fn gain(&self) -> Option<&'static str> {
        match self.mode {
            Mode::DeferTaskrun => None,
            Mode::CoopTaskrun | Mode::Plain => Some(
                "from Linux 6.1 on, completions interrupt polls less often, and preemption works",
            ),
            Mode::Readiness => Some(
                "io_uring takes a batch of operations per system call instead of one, and files need no threads",
            ),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (driver, mode, why) = (self.driver(), self.mode, self.why());
        match self.mode {
            Mode::Readiness => writeln!(f, "driver: {mode}")?,
            _ => writeln!(f, "driver: {driver} (io_uring, {mode})")?,
        }
        write!(f, "why: {why}")?;
        match self.gain() {
            Some(gain) => write!(f, "\npossible improvement: {gain}"),
            None => Ok(()),
        }
    }
}

impl Offload for Pool {
    fn offload(&self, level: u8, job: Job) {
        let level = Level::new(level).unwrap_or_default();
        if let Err(Refused { error, job }) = self.submit(level, pool::Job::Call(job))
            && let (Some(errno), pool::Job::Call(call)) = (errno_of(&error), job)
        {
            call.refuse(errno);
        }
        // A refusal without an errno means that the runtime is shutting down. The job is then
        // dropped, and its operation ends with ECANCELED.
    }
}
