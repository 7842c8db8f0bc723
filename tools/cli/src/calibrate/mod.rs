//! `upshift calibrate`: measures how long a switch between threads and a timer take on this
//! machine.
//!
//! The measurement takes well under a second, during which ordinary threads do not get the measured
//! CPU. Without the right to use SCHED_FIFO, the command prints the missing privilege with its
//! remedy, and fails.

mod args;
mod run;
mod show;

pub(crate) use args::CalibrateArgs;
pub(crate) use run::calibrate;
