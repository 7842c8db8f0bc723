//! `upshift burn`: background work that takes all the CPU it gets, and reports the amount done.
//!
//! The command stands for a batch job beside a server. Work is counted in CPU time burnt by loops
//! of fixed length, so the report is independent of other load on the CPUs.

mod args;
mod run;

pub(crate) use args::BurnArgs;
pub(crate) use run::burn;
