//! `upshift burn`: background work that takes all the CPU it gets, and says how much it got done.
//!
//! It stands for a batch job beside a server. Work is counted in CPU time burnt by loops of fixed length, so what is reported
//! is what was done, whatever else ran on the CPUs.

mod args;
mod run;

pub(crate) use args::BurnArgs;
pub(crate) use run::burn;
