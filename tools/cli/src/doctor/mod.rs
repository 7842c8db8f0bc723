//! `upshift doctor`: what works here, and what to change for the rest, in one screen.
//!
//! Every line is found out by trying, not by looking at versions; it takes some ms and changes nothing.

mod args;
mod run;
mod show;

pub(crate) use args::DoctorArgs;
pub(crate) use run::doctor;
