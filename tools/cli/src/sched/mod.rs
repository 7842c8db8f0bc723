//! `upshift sched`: unmodified processes under a policy written in user space.
//!
//! | module | concern |
//! |---|---|
//! | `args`, `file` | the command line, and options from a file |
//! | `run` | the engine, signals, the end |
//! | `tasks` | the scheduled processes: pids, commands to start, the policy's argument of each |
//! | `choice` | the policy with its parameters |
//! | `show` | live line, table, JSON |
//! | `timeline` | the running times of each task, as SVG |

mod args;
mod choice;
mod file;
mod run;
mod show;
mod tasks;
mod timeline;

pub(crate) use args::SchedArgs;
pub(crate) use file::expand_config;
pub(crate) use run::sched;
