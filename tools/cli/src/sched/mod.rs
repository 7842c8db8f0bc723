//! `upshift sched`: runs unmodified processes under a scheduling policy in user space.
//!
//! | module | concern |
//! |---|---|
//! | `args`, `file` | the command line, and options from a file |
//! | `run` | runs the scheduler until all tasks have ended or a signal arrives |
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
