//! `upshift calibrate`: the cost of a switch and of a timer on this machine, and missing
//! privileges.
//!
//! Takes well under a second, during which ordinary threads do not get the measured CPU. Without
//! the right to use SCHED_FIFO it prints the missing privilege with its remedy, and fails.

mod args;
mod run;
mod show;

pub(crate) use args::CalibrateArgs;
pub(crate) use run::calibrate;
