//! `upshift sched`: unmodified processes under a policy written in user space.
//!
//! | module | concern |
//! |---|---|
//! | `args`, `file` | the command line, and options from a file |
//! | `run` | the engine, signals, the end |
//! | `tasks` | which processes: pids, commands to start, what each was given |
//! | `choice` | the policy with its parameters |
//! | `show` | live line, table, JSON |
//! | `timeline` | which thread ran when, as SVG |

mod args;
mod choice;
mod file;
mod run;
mod show;
mod tasks;
mod timeline;

pub(crate) use args::SchedArgs;
pub(crate) use file::expanded;
pub(crate) use run::sched;
