//! `upshift calibrate`: what a switch and a timer cost on this machine, and which rights are missing.
//!
//! Takes well under a second, during which ordinary threads do not get the CPU measured. Without the right to
//! use SCHED_FIFO it prints what is missing with its remedy, and fails.

mod args;
mod run;
mod show;

pub(crate) use args::CalibrateArgs;
pub(crate) use run::calibrate;
