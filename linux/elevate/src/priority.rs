//! The SCHED_FIFO priorities that this crate uses. A *band* is a priority with a role in a
//! scheduler ([`Bands`]).
//!
//! Invariant: a [`Priority`] is 1 … 49, because the kernel's interrupt threads run at 50, and no
//! thread of Upshift may delay an interrupt. The highest priority is the guardian's. Threads of
//! other processes get at most [`Priority::FOREIGN_MAX`], so that the guardian can always preempt
//! them.

use std::error::Error;
use std::fmt;

/// A SCHED_FIFO priority, 1 (lowest) … 49 (highest).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The lowest priority, which is still above every ordinary thread.
    pub const MIN: Priority = Priority(1);
    /// The highest priority, just below the kernel's interrupt threads, which run at 50.
    pub const MAX: Priority = Priority(49);
    /// The highest priority for threads of other processes, below the guardian's [`Priority::MAX`].
    pub const FOREIGN_MAX: Priority = Priority(48);

    /// Creates a priority.
    ///
    /// # Errors
    /// [`PriorityError`] outside 1 … 49.
    pub const fn new(value: u8) -> Result<Priority, PriorityError> {
        if value >= Priority::MIN.0 && value <= Priority::MAX.0 {
            Ok(Priority(value))
        } else {
            Err(PriorityError { value })
        }
    }

    /// Returns the priority `VALUE`, checked by the compiler.
    ///
    /// ```
    /// # use upshift_elevate::Priority;
    /// const WORKER: Priority = Priority::of::<20>();
    /// assert_eq!(WORKER.get(), 20);
    /// ```
    ///
    /// ```compile_fail
    /// # use upshift_elevate::Priority;
    /// let above_the_interrupt_threads = Priority::of::<50>();
    /// ```
    pub const fn of<const VALUE: u8>() -> Priority {
        const {
            assert!(VALUE >= 1 && VALUE <= 49, "priorities are 1 to 49");
        }
        Priority(VALUE)
    }

    /// Returns the kernel's number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for Priority {
    type Error = PriorityError;

    fn try_from(value: u8) -> Result<Priority, PriorityError> {
        Priority::new(value)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The error for a number outside 1 … 49.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityError {
    value: u8,
}

impl fmt::Display for PriorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SCHED_FIFO priority {} is outside 1 to 49: choose one of these (interrupt threads of the kernel run at 50)",
            self.value
        )
    }
}

impl Error for PriorityError {}

/// The three priorities of one scheduler: for demoted threads, for the running thread, and for the
/// dispatcher.
///
/// They ascend strictly, so that raising or lowering one thread is enough to switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bands {
    demoted: Priority,
    elevated: Priority,
    dispatcher: Priority,
}

impl Default for Bands {
    /// Returns the bands 10, 20 and 30.
    fn default() -> Bands {
        Bands::DEFAULT
    }
}

impl Bands {
    /// The bands 10, 20 and 30, which leave room below, between and above.
    pub const DEFAULT: Bands = Bands {
        demoted: Priority(10),
        elevated: Priority(20),
        dispatcher: Priority(30),
    };

    /// Creates bands. Returns `None` unless `demoted < elevated < dispatcher`.
    pub const fn new(demoted: Priority, elevated: Priority, dispatcher: Priority) -> Option<Bands> {
        if demoted.0 < elevated.0 && elevated.0 < dispatcher.0 {
            Some(Bands {
                demoted,
                elevated,
                dispatcher,
            })
        } else {
            None
        }
    }

    /// Returns the priority of threads that must not run now.
    pub const fn demoted(self) -> Priority {
        self.demoted
    }

    /// Returns the priority of the thread that runs.
    pub const fn elevated(self) -> Priority {
        self.elevated
    }

    /// Returns the priority of the dispatcher, which interrupts the other threads when it wakes.
    pub const fn dispatcher(self) -> Priority {
        self.dispatcher
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_stay_below_the_interrupt_threads() {
        assert!(Priority::new(0).is_err());
        assert!(Priority::new(50).is_err());
        assert!(Priority::new(255).is_err());
        assert_eq!(Priority::new(1), Ok(Priority::MIN));
        assert_eq!(Priority::new(49), Ok(Priority::MAX));
        assert!(Priority::FOREIGN_MAX < Priority::MAX);
        let text = Priority::new(50).unwrap_err().to_string();
        assert!(text.contains("1 to 49"), "{text}");
    }

    #[test]
    fn bands_ascend() {
        let (a, b, c) = (
            Priority::of::<1>(),
            Priority::of::<2>(),
            Priority::of::<3>(),
        );
        assert!(Bands::new(a, b, c).is_some());
        assert!(Bands::new(b, b, c).is_none());
        assert!(Bands::new(a, c, c).is_none());
        let bands = Bands::default();
        assert!(bands.demoted() < bands.elevated() && bands.elevated() < bands.dispatcher());
    }
}
