//! `upshift daemon`: runs the machine-wide scheduler in the foreground.

mod args;
mod run;

pub(crate) use args::DaemonArgs;
pub(crate) use run::daemon;
