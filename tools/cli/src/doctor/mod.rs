//! `upshift doctor`: features that work on this machine, and remedies for the rest, on one screen.
//!
//! Every line is tried, not derived from versions; the whole takes some milliseconds and changes
//! nothing.

mod args;
mod run;
mod show;

pub(crate) use args::DoctorArgs;
pub(crate) use run::doctor;
