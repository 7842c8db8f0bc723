//! The policies that come with the crate.
//!
//! | policy | task that runs | use |
//! |---|---|---|
//! | [`RoundRobin`] | each task in turn for one slice | equal progress of equal programs |
//! | [`Table`] | the task that a repeating timetable names | time-triggered systems, experiments |
//! | [`Weighted`] | the task with the least CPU time per share | a reserved part of a CPU |
//! | [`Edf`] | the task with the earliest deadline and a budget for each period | periodic work |
//! | [`Levels`] | the most urgent level, in turn within a level | a server before its batch jobs |
//! | [`Solo`] | one task until it blocks | as few switches as possible |
//!
//! All policies are work-conserving, that is, a task that is not favoured runs when the favoured
//! tasks block.

mod edf;
mod levels;
mod rr;
mod solo;
mod table;
mod weighted;

pub use edf::{Edf, EdfError, Reservation};
pub use levels::Levels;
pub use rr::RoundRobin;
pub use solo::Solo;
pub use table::{Entry, Table};
pub use weighted::Weighted;
