//! Defines the errors of this crate. Where the user can act, the message contains advice.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::time::Duration;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why an operation, or the job, has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The library offers less thread safety than the runtime's vCPUs need.
    Threads {
        /// The support that [`Launch`](crate::Launch) requested.
        needed: Threads,
        /// The support that the library provides.
        provided: Threads,
    },
    /// A thread other than the thread of the runtime started an operation with
    /// [`Threads::Funneled`].
    WrongThread,
    /// The number of items exceeds MPI's 31-bit count; carries the number.
    TooLong(usize),
    /// The buffer cannot be divided into equal parts for the ranks; carries its length and the
    /// number of ranks.
    Uneven(usize, usize),
    /// The rank does not exist; carries the requested rank and the number of ranks of the
    /// communicator.
    Rank(usize, usize),
    /// The colour exceeds the maximum, 2147483647; carries the colour.
    Colour(u32),
    /// The key exceeds the maximum, 2147483647; carries the key.
    Key(usize),
    /// The received message is not a whole number of items of the requested type.
    PartialItem,
    /// MPI refused the operation; carries the class of the error and its text.
    Mpi(i32, String),
    /// A rank has died or hangs, so the job is about to end.
    Died(Death),
    /// The handler of a request on the other rank panicked.
    Handler,
    /// This rank is leaving the job.
    Ended,
    /// The library lacks this function.
    Unsupported(&'static str),
    /// The persistent operation still runs and must be awaited first.
    Busy,
    /// Operations of this rank were not complete at the end of the job, because other ranks never
    /// received or joined; carries their number.
    Undrained(usize),
    /// The operating system refused a resource that the job needs.
    System(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Threads { needed, provided } => write!(
                f,
                "this MPI library provides {provided:?} thread support where {needed:?} is needed: use one vCPU \
                 without preemption, or a library that was built with thread support"
            ),
            Error::WrongThread => write!(
                f,
                "MPI was initialised for one thread, and this is another thread: start operations in coroutines, or launch with several vCPUs"
            ),
            Error::TooLong(items) => write!(
                f,
                "{items} items are more than MPI can count (2147483647): send several messages"
            ),
            Error::Uneven(items, ranks) => write!(
                f,
                "{items} items cannot be divided among {ranks} ranks: pad the buffer"
            ),
            Error::Rank(rank, ranks) => write!(
                f,
                "there is no rank {rank}: the ranks of the communicator are 0 to {}",
                ranks.saturating_sub(1)
            ),
            Error::Colour(colour) => write!(
                f,
                "colour {colour} exceeds MPI's maximum (2147483647): number the colours from 0 on"
            ),
            Error::Key(key) => write!(
                f,
                "key {key} exceeds MPI's maximum (2147483647): use ranks or other small numbers as keys"
            ),
            Error::PartialItem => write!(
                f,
                "the message is not a whole number of items: receive it as the type that was sent"
            ),
            Error::Mpi(_, text) => f.write_str(text),
            Error::Died(death) => death.fmt(f),
            Error::Handler => f.write_str("the request's handler panicked on the other rank"),
            Error::Ended => f.write_str("this rank is leaving the job"),
            Error::Unsupported(name) => {
                write!(
                    f,
                    "this MPI library has no {name}: start the operation anew each time"
                )
            }
            Error::Busy => f.write_str("the persistent operation still runs: await it first"),
            Error::Undrained(count) => write!(
                f,
                "{count} operations were never completed by other ranks: match every send and collective"
            ),
            Error::System(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// A rank that has died or hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// Number of the rank in the world.
    pub rank: usize,
    /// Process of the rank.
    pub pid: u32,
    /// Time for which the rank has not polled, if it is alive.
    pub hangs: Option<Duration>,
    /// The level-0 request that the rank began last.
    pub last_urgent: Option<String>,
    /// Set if the rank was alone on its host, so that no other rank can read its last request.
    pub was_alone: bool,
}

impl Death {
    pub(crate) fn alone(rank: u32, pid: u32) -> Death {
        Death {
            rank: rank as usize,
            pid,
            hangs: None,
            last_urgent: None,
            was_alone: true,
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (process {}) ", self.rank, self.pid)?;
        match self.hangs {
            None => f.write_str("has died")?,
            Some(time) => write!(f, "has not polled for {} s", time.as_secs_f32())?,
        }
        match &self.last_urgent {
            None if self.was_alone => f.write_str(", alone on its host"),
            Some(text) => write!(f, "; its last level-0 request: {text}"),
            None => f.write_str("; it had begun no level-0 request"),
        }
    }
}

/// The number of threads that may call MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Threads {
    /// The process has one thread.
    Single,
    /// A single thread calls MPI, which is enough for one vCPU without preemption.
    Funneled,
    /// Several threads call MPI, one at a time, which several vCPUs need.
    Serialized,
    /// Several threads call MPI concurrently, which this crate never needs.
    Multiple,
}

impl Threads {
    pub(crate) fn number(self) -> c_int {
        // SAFETY: the library defines these values as constants.
        unsafe {
            match self {
                Threads::Single => mpi_sys::RSMPI_THREAD_SINGLE,
                Threads::Funneled => mpi_sys::RSMPI_THREAD_FUNNELED,
                Threads::Serialized => mpi_sys::RSMPI_THREAD_SERIALIZED,
                Threads::Multiple => mpi_sys::RSMPI_THREAD_MULTIPLE,
            }
        }
    }

    /// Returns the level of thread support for MPI's number. MPI's numbers ascend with the levels.
    pub(crate) fn from_number(number: c_int) -> Threads {
        [Threads::Multiple, Threads::Serialized, Threads::Funneled]
            .into_iter()
            .find(|level| number >= level.number())
            .unwrap_or(Threads::Single)
    }
}

/// Converts the return value of an MPI function into a result. This thread must have the right to
/// call MPI, which provides the text.
pub(crate) fn check(code: c_int) -> Result<()> {
    if code == mpi_sys::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; mpi_sys::MPI_MAX_ERROR_STRING as usize + 1];
    let (mut length, mut class) = (0, 0);
    // SAFETY: the buffer has the length that MPI requires.
    unsafe {
        mpi_sys::MPI_Error_class(code, &mut class);
        mpi_sys::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length);
    }
    let length = usize::try_from(length).unwrap_or(0).min(text.len());
    Err(Error::Mpi(
        class,
        String::from_utf8_lossy(&text[..length]).into_owned(),
    ))
}
