//! `upshift doctor`: shows on one screen which features work on this machine, and remedies for the
//! rest.
//!
//! Every feature is tried rather than derived from versions. The command takes a few milliseconds
//! and changes nothing.

mod args;
mod run;
mod show;

pub(crate) use args::DoctorArgs;
pub(crate) use run::doctor;
